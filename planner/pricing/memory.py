"""Which activations a device holds, and when.

Time counts operators: i in the forward pass, end - 1 - i in the backward pass.  Training keeps what the backward
reads from one to the other, in the layouts its readers see (once per distinct layout), else where it is produced.
With recomputation of blocks, what is made and read inside one block lives only while that block is run again and
differentiated; what enters a block is kept, since the block is run again from there.  Inference keeps results
until their last reader.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from planner.frontends.blocks import repeated_blocks
from planner.ir import Graph, Op
from planner.pricing.activity import saved_for_backward, saved_slots
from planner.rules.rule import Rule

__all__ = ["Held", "activation_memory", "recomputed_blocks"]

_Interval = tuple[int, int]
_Case = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What a node of the Problem holds during a half-open interval, the hull of the intervals of its parts (a bound
    from above where they differ).

    Cases: ("hub", what the tensor's hub is alike in), ("operand", class, slot) or ("result", class, output).
    """

    cases: tuple[_Case, ...]
    interval: _Interval


def recomputed_blocks(graph: Graph) -> dict[str, int]:
    """Operator → number of the block (of a run of equal ones) that it is in."""
    blocks = [block for run in repeated_blocks(graph) for block in run.blocks]
    return {name: k for k, block in enumerate(blocks) for name in block}


def activation_memory(
    graph: Graph,
    rules: Mapping[str, Rule],
    active: frozenset[str],
    class_of: Mapping[str, int],
    op_nodes: Mapping[str, int],
    hubs: Mapping[str, tuple[int, Hashable]],
    blocks: Mapping[str, int],
    *,
    training: bool,
) -> dict[int, Held]:
    """What is held, by node of the Problem; `class_of` numbers the classes of operators that look alike."""
    found = _Activations(graph, rules, active, class_of, op_nodes, hubs, blocks)
    return found.training() if training else found.inference()


class _Activations:
    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        class_of: Mapping[str, int],
        op_nodes: Mapping[str, int],
        hubs: Mapping[str, tuple[int, Hashable]],
        blocks: Mapping[str, int],
    ) -> None:
        self.graph, self.rules, self.active = graph, rules, active
        self.class_of, self.op_nodes, self.hubs, self.blocks = class_of, op_nodes, hubs, blocks
        self.position = {op.name: i for i, op in enumerate(graph.ops)}
        self.end = 2 * len(graph.ops) + 1
        self.last_of_block: dict[int, int] = {}
        for name, block in blocks.items():
            self.last_of_block[block] = max(self.last_of_block.get(block, 0), self.position[name])

    def training(self) -> dict[int, Held]:
        saved = saved_for_backward(self.graph, self.rules, self.active)
        held: dict[int, list[tuple[_Case, _Interval]]] = defaultdict(list)
        for op in self.graph.ops:
            if op.name not in self.op_nodes:
                continue
            for j, name in enumerate(op.outputs):
                if name and self.graph.tensors[name].shape is not None:
                    interval = self._lifetime(op, name, name in saved)
                    if interval is not None:
                        node, case = self._place(op, j, name)
                        held[node].append((case, interval))
        return _hull(held)

    def inference(self) -> dict[int, Held]:
        held: dict[int, list[tuple[_Case, _Interval]]] = defaultdict(list)
        for op in self.graph.ops:
            if op.name not in self.op_nodes:
                continue
            begin = self.position[op.name]
            for j, name in enumerate(op.outputs):
                if name and self.graph.tensors[name].shape is not None:
                    ends = [self.position[c.name] for c, _ in self.graph.consumers.get(name, ())]
                    interval = begin, max([begin, *ends]) + 1
                    held[self.op_nodes[op.name]].append((("result", self.class_of[op.name], j), interval))
        return _hull(held)

    def _lifetime(self, op: Op, name: str, saved: bool) -> _Interval | None:
        begin = self.position[op.name]
        through = (begin, self.end - 1 - begin)
        readers = {self.blocks.get(c.name) for c, _ in self.graph.consumers.get(name, ())}
        block = self.blocks.get(op.name)
        if block is not None and readers == {block}:
            return (self.end - 1 - self.last_of_block[block], self.end - 1 - begin) if saved else None
        return through if saved or readers - {None, block} else None

    def _place(self, op: Op, j: int, name: str) -> tuple[int, _Case]:
        if name in self.hubs:
            node, hub = self.hubs[name]
            return node, ("hub", hub)
        for reader, i in self.graph.consumers.get(name, ()):
            if reader.name in self.op_nodes and i in saved_slots(reader, self.rules[reader.name], self.active):
                return self.op_nodes[reader.name], ("operand", self.class_of[reader.name], i)
        return self.op_nodes[op.name], ("result", self.class_of[op.name], j)


def _hull(held: Mapping[int, list[tuple[_Case, _Interval]]]) -> dict[int, Held]:
    return {
        node: Held(tuple(case for case, _ in parts), (min(i[0] for _, i in parts), max(i[1] for _, i in parts)))
        for node, parts in held.items()
    }
