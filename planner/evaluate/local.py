"""Sizes of tensors, operators and products as one rank sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.evaluate.axis import WHOLE, Along, Choice
from planner.evaluate.model import Model
from planner.evaluate.workload import Axis
from planner.ir import Graph, Op, Role
from planner.rules.rule import Rule

__all__ = ["Local", "Shares"]


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """A graph laid out along `axes`; `width` are bytes of a float.

    `alias` names, for tensors that only rearrange another, the one that exists in memory.
    """

    graph: Graph
    model: Model
    axes: Mapping[Axis, Along]
    width: float
    alias: Mapping[str, str] = field(default_factory=dict)

    def rule(self, op: Op) -> Rule:
        return self.model.rules[op.name]

    def unit(self, op: Op) -> int:
        return self.model.unit[op.name]

    def root(self, tensor: str) -> str:
        """The tensor whose bytes these are."""
        return self.alias.get(tensor, tensor)

    def is_fixed(self, tensor: str) -> bool:
        """Whether the tensor is the same at every step, and so neither exchanged nor kept for a backward pass."""
        producer = self.graph.producers.get(tensor)
        return producer is not None and producer.name in self.model.fixed

    def is_constant(self, tensor: str) -> bool:
        return self.graph.tensors[tensor].role is Role.CONSTANT

    def trained(self, op: Op) -> bool:
        return any(t in self.model.active for t in op.outputs)

    # Bytes

    def bytes(self, tensor: str) -> float:
        """Of the whole tensor; 0 where its shape is unknown, and of an optional one that is left out."""
        t = self.graph.tensors.get(tensor)
        if t is None or t.shape is None:
            return 0.0
        return float(t.stored_bytes) if t.is_quantised else math.prod(t.shape) * float(self.width)

    def resting(self, tensor: str, but: Axis | None = None) -> float:
        """Bytes of the tensor as it rests on one rank; whole along the axis `but`."""
        shards = [x.size for a, x in self.axes.items() if a != but and x.rest.get(tensor, WHOLE) >= 0]
        return self.bytes(tensor) / math.prod(shards)

    def read(self, op: Op, i: int) -> float:
        """Bytes of operand i as the operator reads it."""
        return self.bytes(op.inputs[i]) / self._share({a: x.choices[op.name].operands[i] for a, x in self.axes.items()})

    def written(self, op: Op, j: int) -> float:
        """Bytes of result j as the operator leaves it, a pending sum whole."""
        return self.bytes(op.outputs[j]) / self._share({a: x.choices[op.name].results[j] for a, x in self.axes.items()})

    def _share(self, codes: Mapping[Axis, int | None]) -> int:
        return math.prod(self.axes[a].size for a, code in codes.items() if code is not None and code >= 0)

    # Work

    def shards(self, op: Op) -> int:
        """Ranks among which the operator's work is divided."""
        return math.prod(x.choices[op.name].parallelism for x in self.axes.values())

    def shards_of(self, op: Op) -> Shares:
        return Shares({a: x.choices[op.name] for a, x in self.axes.items()}, {a: x.size for a, x in self.axes.items()})

    def product_batch(self, op: Op) -> int:
        """How many products of matrices an operator consists of on the rank."""
        rule, shards = self.rule(op), self.shards_of(op)
        left, right, result = ({f for d in dims or () for f in d} for dims in (*rule.operands[:2], rule.results[0]))
        return math.prod(max(1, round(rule.factors[f] / shards.factor(f))) for f in left & right & result)


@dataclass(frozen=True, slots=True)
class Shares:
    """Into how many pieces the axes cut what an operator reads, writes and does."""

    choices: Mapping[Axis, Choice]
    sizes: Mapping[Axis, int]

    @property
    def parallelism(self) -> float:
        return math.prod(float(c.parallelism) for c in self.choices.values())

    def operand(self, slot: int) -> float:
        return self._pieces([c.operands[slot] for c in self.choices.values()])

    def result(self, output: int) -> float:
        return self._pieces([c.results[output] for c in self.choices.values()])

    def factor(self, name: str) -> float:
        return math.prod(
            float(n) for c, n in zip(self.choices.values(), self.sizes.values(), strict=True) if name in c.factors
        )

    def _pieces(self, codes: Sequence[int | None]) -> float:
        """Codes as of `axis`, by axis."""
        sizes = self.sizes.values()
        return math.prod(float(n) for code, n in zip(codes, sizes, strict=True) if code is not None and code >= 0)
