"""Which activations a device holds, and when.

Time counts operators: i in the forward pass, end - 1 - i in the backward pass.  Training keeps what the backward
reads from one to the other, in the layouts its readers see (once per distinct layout), else where it is produced.
With recomputation of blocks, what is made and read inside one block lives only while that block is run again and
differentiated; what enters a block is kept, since the block is run again from there.  Inference keeps results
until their last reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.frontends.blocks import repeated_blocks
from planner.ir import Graph, Layout, Op
from planner.pricing.activity import saved_for_backward, saved_slots
from planner.pricing.hubs import SetHub, StarHub
from planner.pricing.machine import IntArray, Machine
from planner.pricing.operators import OperatorTable
from planner.rules.rule import Rule

__all__ = ["Holding", "activation_memory", "recomputed_blocks"]


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """Bytes by state of a node, during a half-open interval."""

    usage: IntArray
    interval: tuple[int, int]


def recomputed_blocks(graph: Graph) -> dict[str, int]:
    """Operator → number of the block (of a run of equal ones) that it is in."""
    blocks = [block for run in repeated_blocks(graph) for block in run.blocks]
    return {name: k for k, block in enumerate(blocks) for name in block}


def activation_memory(
    graph: Graph,
    machine: Machine,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    tables: Mapping[str, OperatorTable],
    op_nodes: Mapping[str, int],
    hubs: Mapping[str, tuple[int, SetHub | StarHub]],
    blocks: Mapping[str, int],
) -> dict[int, Holding]:
    """Holdings by node of the Problem; arrays of equal cases are shared."""
    found = _Activations(graph, machine, rules, active, tables, op_nodes, hubs, blocks)
    return found.training() if machine.settings.training else found.inference()


class _Activations:
    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        tables: Mapping[str, OperatorTable],
        op_nodes: Mapping[str, int],
        hubs: Mapping[str, tuple[int, SetHub | StarHub]],
        blocks: Mapping[str, int],
    ) -> None:
        self.graph, self.machine, self.rules, self.active = graph, machine, rules, active
        self.tables, self.op_nodes, self.hubs, self.blocks = tables, op_nodes, hubs, blocks
        self.position = {op.name: i for i, op in enumerate(graph.ops)}
        self.end = 2 * len(graph.ops) + 1
        self.last_of_block: dict[int, int] = {}
        for name, block in blocks.items():
            self.last_of_block[block] = max(self.last_of_block.get(block, 0), self.position[name])
        self._bytes: dict[object, IntArray] = {}

    def training(self) -> dict[int, Holding]:
        saved = saved_for_backward(self.graph, self.rules, self.active)
        held: dict[int, list[tuple[object, tuple[int, int]]]] = defaultdict(list)
        for op in self.graph.ops:
            if op.name not in self.op_nodes:
                continue
            for j, name in enumerate(op.outputs):
                if name and self.graph.tensors[name].shape is not None:
                    interval = self._lifetime(op, name, name in saved)
                    if interval is not None:
                        node, key = self._place(op, j, name)
                        held[node].append((key, interval))
        return self._sum(held)

    def inference(self) -> dict[int, Holding]:
        held: dict[int, list[tuple[object, tuple[int, int]]]] = defaultdict(list)
        for op in self.graph.ops:
            if op.name not in self.op_nodes:
                continue
            begin = self.position[op.name]
            for j, name in enumerate(op.outputs):
                if name and self.graph.tensors[name].shape is not None:
                    ends = [self.position[c.name] for c, _ in self.graph.consumers.get(name, ())]
                    held[self.op_nodes[op.name]].append(
                        (self._local(op, j, "result"), (begin, max([begin, *ends]) + 1))
                    )
        return self._sum(held)

    def _lifetime(self, op: Op, name: str, saved: bool) -> tuple[int, int] | None:
        begin = self.position[op.name]
        through = (begin, self.end - 1 - begin)
        readers = {self.blocks.get(c.name) for c, _ in self.graph.consumers.get(name, ())}
        block = self.blocks.get(op.name)
        if block is not None and readers == {block}:
            return (self.end - 1 - self.last_of_block[block], self.end - 1 - begin) if saved else None
        return through if saved or readers - {None, block} else None

    def _place(self, op: Op, j: int, name: str) -> tuple[int, object]:
        if name in self.hubs:
            node, hub = self.hubs[name]
            key = ("hub", id(hub))
            if key not in self._bytes:
                self._bytes[key] = self._of_layouts(name, [hub.held(s) for s in range(len(hub.states))])
            return node, key
        for reader, i in self.graph.consumers.get(name, ()):
            if reader.name in self.op_nodes and i in saved_slots(reader, self.rules[reader.name], self.active):
                return self.op_nodes[reader.name], self._local(reader, i, "operand")
        return self.op_nodes[op.name], self._local(op, j, "result")

    def _local(self, op: Op, index: int, side: str) -> object:
        table = self.tables[op.name]
        key = ("local", id(table), index, side)
        if key not in self._bytes:
            name = op.inputs[index] if side == "operand" else op.outputs[index]
            layouts = (table.reads if side == "operand" else table.writes)[index] or ()
            self._bytes[key] = self._of_layouts(name, [(x,) for x, _ in layouts])
        return key

    def _of_layouts(self, name: str, held: Sequence[tuple[Layout, ...]]) -> IntArray:
        size = self.machine.settings.tensor_bytes(self.graph.tensors[name])
        mesh = self.machine.mesh
        return np.array([sum(size // x.shards(mesh) for x in layouts) for layouts in held], dtype=np.int64)

    def _sum(self, held: Mapping[int, Sequence[tuple[object, tuple[int, int]]]]) -> dict[int, Holding]:
        """One holding per node, over the hull of its intervals: a bound from above where they differ."""
        sums: dict[tuple[object, ...], IntArray] = {}
        out = {}
        for node, parts in held.items():
            keys = tuple(k for k, _ in parts)
            if keys not in sums:
                sums[keys] = np.sum([self._bytes[k] for k in keys], axis=0)
            out[node] = Holding(sums[keys], (min(i[0] for _, i in parts), max(i[1] for _, i in parts)))
        return out
