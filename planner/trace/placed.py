"""Sizes of tensors, operators and products as one rank of a program sees them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.ir import DeviceMesh, Graph, Layout, Op, Role
from planner.lowering import Load, Program, Redistribute
from planner.pricing import Settings
from planner.rules.rule import Rule
from planner.rules.strategy import Strategy
from planner.trace.facts import Facts
from planner.work.fusion import Fusion

__all__ = ["Placed", "Shares", "resting_layouts"]


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """A program's tensors and operators.  `rest` says how results lie between their producer and their readers:
    `resting_layouts`."""

    program: Program
    facts: Facts
    fusion: Fusion
    settings: Settings
    rest: Mapping[str, Layout]
    _shares: dict[int, Shares] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def mesh(self) -> DeviceMesh:
        return self.program.mesh

    @property
    def active(self) -> frozenset[str]:
        return self.program.active

    @property
    def width(self) -> float:
        """Bytes of a float."""
        return 4.0 if self.settings.precision == "fp32" else 2.0

    def rule(self, op: Op) -> Rule:
        return self.program.rules[op.name]

    def strategy(self, op: Op) -> Strategy:
        return self.program.strategies[op.name]

    def unit(self, op: Op) -> int:
        return self.facts.unit[op.name]

    def root(self, tensor: str) -> str:
        """The tensor whose bytes these are."""
        return self.fusion.alias.get(tensor, tensor)

    def is_fixed(self, tensor: str) -> bool:
        """Whether the tensor is the same at every step, and so neither exchanged nor kept for a backward pass."""
        producer = self.graph.producers.get(tensor)
        return producer is not None and producer.name in self.facts.fixed

    def is_constant(self, tensor: str) -> bool:
        return self.graph.tensors[tensor].role is Role.CONSTANT

    def trained(self, op: Op) -> bool:
        return any(t in self.active for t in op.outputs)

    # Bytes

    def bytes(self, tensor: str) -> int:
        """Of the whole tensor; 0 where its shape is unknown, and of an optional one that is left out."""
        t = self.graph.tensors.get(tensor)
        return 0 if t is None or t.shape is None else self.settings.tensor_bytes(t)

    def resting(self, tensor: str) -> float:
        """Bytes of the tensor as it rests on one rank."""
        layout = self.rest.get(tensor)
        return self.bytes(tensor) / (1 if layout is None else layout.shards(self.mesh))

    def read(self, op: Op, i: int) -> float:
        """Bytes of operand i as the operator reads it."""
        return self.bytes(op.inputs[i]) / self.shares(op).operand(i)

    def written(self, op: Op, j: int) -> float:
        """Bytes of result j as the operator leaves it, a pending sum whole."""
        return self.bytes(op.outputs[j]) / self.shares(op).result(j)

    # Work

    def shares(self, op: Op) -> Shares:
        strategy = self.strategy(op)
        if id(strategy) not in self._shares:
            self._shares[id(strategy)] = Shares(strategy, self.mesh)
        return self._shares[id(strategy)]

    def product_batch(self, op: Op) -> int:
        """How many products of matrices an operator consists of on the rank."""
        rule, shares = self.rule(op), self.shares(op)
        left, right, result = ({f for d in dims or () for f in d} for dims in (*rule.operands[:2], rule.results[0]))
        return math.prod(max(1, round(rule.factors[f] / shares.factor(f))) for f in left & right & result)


@dataclass(frozen=True, slots=True)
class Shares:
    """Into how many pieces a strategy cuts what an operator reads, writes and does."""

    strategy: Strategy
    mesh: DeviceMesh

    @property
    def parallelism(self) -> float:
        return float(self.strategy.parallelism)

    def operand(self, slot: int) -> float:
        return self._pieces(self.strategy.operands[slot])

    def result(self, output: int) -> float:
        return self._pieces(self.strategy.results[output])

    def factor(self, name: str) -> float:
        return float(self.mesh.size(self.strategy.split.get(name, ())))

    def _pieces(self, layout: Layout | None) -> float:
        return 1.0 if layout is None else float(layout.shards(self.mesh))


def resting_layouts(program: Program) -> dict[str, Layout]:
    """Result → how it lies once its pending sums, if any, are carried out; graph input and parameter → as it is loaded,
    in the most pieces where it is loaded in several layouts."""
    mesh = program.mesh
    out = {
        t: layout
        for op in program.graph.ops
        for t, layout in zip(op.outputs, program.strategies[op.name].results, strict=True)
        if t and layout is not None
    }
    for i in program.instructions:
        if isinstance(i, Redistribute) and not i.gradient:
            here = out.get(i.tensor)
            if here is not None and here.partial and i.source == here and len(i.target.partial) < len(here.partial):
                out[i.tensor] = i.target
        elif isinstance(i, Load) and i.tensor not in program.graph.producers:
            known = out.get(i.tensor)
            if known is None or i.layout.shards(mesh) > known.shards(mesh):
                out[i.tensor] = i.layout
    return out
