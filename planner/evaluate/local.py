"""Sizes of tensors, operators and products as one rank sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.evaluate.axis import WHOLE, Along
from planner.evaluate.model import Model
from planner.evaluate.workload import Axis
from planner.ir import Graph, Op, Role
from planner.rules.rule import Rule

__all__ = ["Local"]


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

    def flops(self, op: Op) -> float:
        return self.rule(op).flops / self.shards(op)

    def product(self, op: Op, flops: float) -> tuple[int, int, int, int]:
        """(batch, rows, columns, depth) of a product or convolution that does `flops` operations on the rank."""
        rule, sizes = self.rule(op), self._factors(op)
        left, right = _names(rule.operands[0]), _names(rule.operands[1] if len(rule.operands) > 1 else None)
        result = _names(rule.results[0])

        def size(names: set[str]) -> int:
            return math.prod(sizes[f] for f in names)

        if rule.kind == "conv":
            columns = max(1, size((right - left) & result))
            rows = max(1, int(self.written(op, 0) / self.width / columns))
            return 1, rows, columns, max(1, round(flops / (2.0 * rows * columns)))
        rows, columns = size((left - right) & result), size((right - left) & result)
        return size(left & right & result), rows, columns, size((left | right) - result)

    def attention(self, op: Op) -> tuple[int, int, int, int]:
        """(heads of all samples, queries, keys, width of a head) of an attention operator."""
        s = self._factors(op)
        return s.get("b", 1) * s.get("h", 1) * s.get("g", 1), s.get("s", 1), s.get("t", 1), s.get("e", 1)

    def _factors(self, op: Op) -> dict[str, int]:
        sizes = dict(self.rule(op).factors)
        for along in self.axes.values():
            for f in along.choices[op.name].factors:
                if f in sizes:
                    sizes[f] = max(1, sizes[f] // along.size)
        return sizes


def _names(dims: tuple[tuple[str, ...], ...] | None) -> set[str]:
    return {f for d in dims or () for f in d}
