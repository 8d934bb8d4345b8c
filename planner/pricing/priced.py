"""A Problem with what is needed to understand its solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.ir import Graph, Layout, Op, Tensor
from planner.pricing.assignment import Assignment, Redistribution, RedistributionPlan, Style
from planner.pricing.hubs import Read, SetHub, StarHub, direct_moves
from planner.pricing.machine import Machine
from planner.pricing.tables import OperatorTable
from planner.redistribute import Redistributions
from planner.rules.rule import Rule
from planner.rules.strategy import REPLICATE, Strategy, bind
from planner.search.problem import Problem

__all__ = ["PricedProblem", "Reader"]


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """A node that reads a tensor: in state s it reads `combinations[rows[s]]`, one entry per operand slot.

    `key` identifies the readers that read alike; `name` is the operator's, or empty for an output of the graph.
    """

    node: int
    combinations: tuple[tuple[Read, ...], ...]
    rows: np.ndarray
    key: tuple[object, ...]
    name: str

    def reads(self, choice: Sequence[int]) -> tuple[Read, ...]:
        """What the node reads in its chosen state."""
        return self.combinations[self.rows[choice[self.node]]]


@dataclass(frozen=True, eq=False)
class PricedProblem:
    graph: Graph
    machine: Machine
    rules: Mapping[str, Rule]
    active: frozenset[str]
    tables: Mapping[str, OperatorTable]
    problem: Problem
    op_nodes: Mapping[str, int]
    parameter_nodes: Mapping[str, int]
    stored_layouts: Mapping[str, tuple[Layout, ...]]
    hubs: Mapping[str, tuple[int, SetHub | StarHub]]
    readers: Mapping[str, Sequence[Reader]]
    fixed: frozenset[str]
    blocks: Mapping[str, int]
    redistributions: Callable[[Tensor], Redistributions]

    def decode(self, choice: Sequence[int]) -> Assignment:
        """Strategies and redistributions that the choice (a state per node) stands for."""
        strategies = {name: self.tables[name].choices.strategy(choice[n]) for name, n in self.op_nodes.items()}
        stored = {name: self.stored_layouts[name][choice[n]] for name, n in self.parameter_nodes.items()}
        redistributions = {t: self.redistribution_plan(t, choice) for t in self.readers}
        for op in self.graph.ops:
            if op.name in self.fixed:
                strategies[op.name] = self._whole(op)
                known = [t for t in op.outputs if t and self.graph.tensors[t].shape is not None]
                redistributions.update({t: self._slices(t, strategies) for t in known})
        return Assignment(strategies, stored, redistributions, self.blocks)

    def _whole(self, op: Op) -> Strategy:
        strategy = bind(self.rules[op.name], self.machine.mesh, (REPLICATE,) * len(self.machine.mesh.axes))
        assert strategy is not None, "replication is always allowed"
        return strategy

    def _slices(self, tensor: str, strategies: Mapping[str, Strategy]) -> RedistributionPlan:
        """Every reader takes its part of a replica, for free."""
        t = self.graph.tensors[tensor]
        whole = Layout.replicated(t.rank)
        moves = []
        for op, slot in self.graph.consumers.get(tensor, ()):
            read = None if op.name in self.fixed else strategies[op.name].operands[slot]
            if read is not None and read != whole:
                moves.append(Redistribution(False, whole, read, self.redistributions(t).path(whole, read), op.name))
        return RedistributionPlan(tensor, "star", whole, None, tuple(dict.fromkeys(moves)))

    def redistribution_plan(self, tensor: str, choice: Sequence[int]) -> RedistributionPlan:
        """How a tensor is redistributed that nodes read."""
        write = self._write(tensor, choice)
        readers = self.readers[tensor]
        moves: list[Redistribution] = []
        style: Style = "direct"
        if tensor in self.hubs:
            node, hub = self.hubs[tensor]
            moves = hub.moves(write, choice[node], [read for r in readers for read in r.reads(choice)])
            style = hub.style
            if isinstance(hub, StarHub):
                for reader in readers:
                    own = [m for read in reader.reads(choice) for m in direct_moves(hub.states[choice[node]], read)]
                    moves += [replace(m, reader=reader.name) for m in dict.fromkeys(own)]
        elif readers:
            (reader,) = readers
            (read,) = reader.reads(choice)
            moves = direct_moves(write, read)
        if not moves:
            return RedistributionPlan(tensor, style, *write)
        table = self.redistributions(self.graph.tensors[tensor])
        return RedistributionPlan(
            tensor, style, *write, tuple(replace(m, steps=table.path(m.source, m.target)) for m in moves)
        )

    def _write(self, tensor: str, choice: Sequence[int]) -> Read:
        if tensor in self.parameter_nodes:
            layout = self.stored_layouts[tensor][choice[self.parameter_nodes[tensor]]]
            return layout, layout if tensor in self.active else None
        op = self.graph.producers[tensor]
        writes = self.tables[op.name].writes[op.outputs.index(tensor)]
        assert writes is not None, f"{tensor} is redistributed, so its shape is known"
        return writes[choice[self.op_nodes[op.name]]]
