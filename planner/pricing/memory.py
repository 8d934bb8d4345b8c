"""What the Problem's memory rows count: bytes that every plan in these states holds at certain instants.

Time counts the n operators: i in the forward pass, 2n - i in the backward pass, and 2n + 1 when the step ends.  An item
is bytes by a node's state during a half-open interval.  What a plan really holds is known from its program
(`planner.trace.lifetimes`); the rows bound it from below, so that no plan that fits is ruled out, and stay few:

- Values inside kernels of several operators count nothing; what a kernel reads and leaves does.
- Training keeps what the backward reads from one pass to the other, in the layout its reader sees.  With recomputation
  of blocks, what is made and read inside one block lives only while that block is run again and differentiated; what
  enters a block is kept, since the block is run again from there.
- Gradients that an operator's backward takes and gives are counted at the fullest instant of the backward pass, as a
  whole model on one device would have it, of operators that are kernels by themselves.
- Inference holds what an operator reads and writes, and what waits for later readers.
- A tensor and what is made from it by reshaping may share storage: one of them is counted.
- Of two layouts that several readers share, the smaller is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import Graph, Op, Role
from planner.pricing.hubs import MAX_SET_READERS
from planner.rules.rule import Rule
from planner.work.activity import made_of_parameters
from planner.work.fusion import Fusion
from planner.work.seen import Seen, seen
from planner.work.views import shares_storage

__all__ = ["Held", "Instants", "Places", "copied", "held_items", "recomputed_blocks"]

_PROBES: Final = 1  # instants of the backward pass at which gradients are counted: every one is a row of its own

_Interval = tuple[int, int]
_Case = tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """What a node of the Problem holds during a half-open interval.

    Cases: ("hub", what the tensor's hub is alike in), ("operand", class, slot), ("result", class, output),
    ("gradients", class, operands), ("delivered", shape, type).
    """

    node: int
    cases: tuple[_Case, ...]
    interval: _Interval


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are in the Problem: classes of operators that look alike and nodes by operator, hubs by tensor (node
    and what they are alike in), nodes of parameters and of delivered outputs by tensor."""

    class_of: Mapping[str, int]
    op_nodes: Mapping[str, int]
    hubs: Mapping[str, tuple[int, Hashable]]
    parameters: Mapping[str, int]
    outputs: Mapping[str, int]


def recomputed_blocks(graph: Graph) -> dict[str, int]:
    """Operator → number of the block (of a run of equal ones) that it is in."""
    blocks = [block for run in repeated_blocks(graph) for block in run.blocks]
    return {name: k for k, block in enumerate(blocks) for name in block}


@dataclass(frozen=True, eq=False)
class Instants:
    """When operators run, and until when what they read is needed.

    `weights` are tensors made of parameters alone, where runtimes keep them as parameters; `readers`: the operator in
    whose backward pass an operand (operator, place, False) or a result (operator, place, True) is read.
    """

    graph: Graph
    rules: Mapping[str, Rule]
    active: frozenset[str]
    blocks: Mapping[str, int]
    what: Seen
    weights: frozenset[str]
    position: Mapping[str, int]
    last_of_block: Mapping[int, int]
    readers: Mapping[tuple[str, int, bool], str]

    @classmethod
    def of(
        cls,
        graph: Graph,
        rules: Mapping[str, Rule],
        active: frozenset[str],
        fusion: Fusion,
        blocks: Mapping[str, int],
    ) -> Instants:
        """`fusion`: which operators run as one kernel; `blocks`: operators that run again, by block."""
        position = {op.name: i for i, op in enumerate(graph.ops)}
        last: dict[int, int] = {}
        for name, block in blocks.items():
            last[block] = max(last.get(block, 0), position[name])
        what = seen(graph, rules, active, fusion, blocks)
        readers = {(s.op, s.place, s.result): name for name, saved in what.saved.items() for s in saved}
        weights = made_of_parameters(graph) if fusion.chains else frozenset[str]()
        return cls(graph, rules, active, blocks, what, weights, position, last, readers)

    @property
    def end(self) -> int:
        """When the step ends."""
        return 2 * len(self.graph.ops) + 1

    def back(self, name: str) -> int:
        """When the operator is differentiated."""
        return 2 * len(self.graph.ops) - self.position[name]

    def saved(self, op: Op, slot: int) -> bool:
        """Whether a backward pass reads this operand."""
        return (op.name, slot, False) in self.readers

    def saves(self, op: Op, output: int) -> bool:
        """Whether a backward pass reads this result."""
        return (op.name, output, True) in self.readers

    def counts(self, tensor: str) -> bool:
        """Whether the tensor is certainly in memory, in its own size, where it is read."""
        if tensor in self.weights:
            return False
        if tensor in self.what.strided:
            source = self.graph.producers[tensor].inputs[0]
            return self.graph.tensors[tensor].elements <= self.graph.tensors[source].elements
        return tensor not in self.what.inside or tensor in self.what.views

    def differentiated(self, op: Op) -> bool:
        return any(t in self.active for t in op.outputs)

    def again(self, op: Op) -> int | None:
        """When the operator's block is run again."""
        block = self.blocks.get(op.name)
        return None if block is None else 2 * len(self.graph.ops) - self.last_of_block[block]

    def needed(self, op: Op, slot: int) -> int:
        """The end of the interval during which the operator needs its operand."""
        reader = self.readers.get((op.name, slot, False))
        if reader is not None:
            return self.back(reader) + 1
        return self.again(op) or self.position[op.name] + 1


def copied(when: Instants, parameter: str, few: int = MAX_SET_READERS) -> _Interval:
    """While a copy of a parameter, in another layout than it is stored in, is held: from its first reader on, as long
    as one of them, or one of a transposed copy of it, needs it.  With more readers than `few`, each of which may
    convert for itself, until the last begins."""
    readers = when.graph.consumers[parameter]
    names = {op.name for op, _ in readers}
    first = min(when.position[n] for n in names)
    if len(names) > few:
        return first, max(first + 1, *(when.again(op) or when.position[op.name] for op, _ in readers))
    return first, max(_needed_through(when, op, slot) for op, slot in readers)


def _needed_through(when: Instants, op: Op, slot: int) -> int:
    """As `Instants.needed`, of what shares the operand's storage as well, where one operator alone reads that."""
    end = when.needed(op, slot)
    if slot == 0 and shares_storage(op, when.rules[op.name], when.graph):
        readers = when.graph.consumers.get(op.outputs[0], ())
        if len(readers) == 1:
            end = max(end, _needed_through(when, *readers[0]))
    return end


def held_items(when: Instants, places: Places, *, training: bool) -> list[Held]:
    """What is held beside parameters and their copies."""
    found = _Found(when, places)
    if training:
        found.training()
        return [*found.apart(), *_gradients(when, places)]
    found.inference()
    return found.apart()


@dataclass(frozen=True, slots=True)
class _Item:
    tensor: str
    node: int
    case: _Case
    interval: _Interval


class _Found:
    """Candidates by tensor, in the order of the graph."""

    def __init__(self, when: Instants, places: Places) -> None:
        self.when, self.places, self.graph = when, places, when.graph
        self.items: list[_Item] = []

    def training(self) -> None:
        for name in self._inputs():
            self._input(name)
        for op, j, name in self._results():
            saves = self.when.saves(op, j)
            reader = self.when.readers.get((op.name, j, True), op.name)
            block = self.when.blocks.get(op.name)
            readers = self.graph.consumers.get(name, ())
            begin = self.when.position[op.name]
            if saves and block is None:
                self._add(name, self._result(op, j), (begin, self.when.back(reader) + 1))
                continue
            outside = [r for r in readers if block is None or self.when.blocks.get(r[0].name) != block]
            self._saved(name, outside, begin + 1)
            again = self.when.again(op)
            if again is None:
                continue
            if saves:
                self._add(name, self._result(op, j), (again, self.when.back(reader) + 1))
            else:
                self._saved_inside(name, [r for r in readers if r not in outside], again)

    def _saved(self, name: str, readers: Sequence[tuple[Op, int]], begin: int) -> None:
        """What waits in the forward pass for the backward pass of `readers`, or for their blocks to run again."""
        middle = len(self.graph.ops)
        needed = [(self.when.needed(op, slot), op, slot) for op, slot in readers]
        end, op, slot = max(needed, key=lambda n: n[0], default=(0, None, 0))
        if op is None or end <= middle:
            return
        if name not in self.places.hubs:
            self._add(name, self._operand(op, slot), (begin, end))
        elif self._is_set(name):
            self._add(name, self._hub(name), (begin, end))
        else:  # readers convert for themselves, from what must then be there
            again = [a for op, _ in readers if (a := self.when.again(op)) is not None]
            if again:
                self._add(name, self._hub(name), (begin, max(again)))
            else:
                self._add(name, self._operand(op, slot), (self.when.position[op.name], end))

    def _saved_inside(self, name: str, readers: Sequence[tuple[Op, int]], begin: int) -> None:
        """What a block that is run again holds until it is differentiated."""
        saved = [(self.when.needed(op, slot), op, slot) for op, slot in readers if self.when.saved(op, slot)]
        end, op, slot = max(saved, key=lambda n: n[0], default=(0, None, 0))
        if op is None:
            return
        hub = name in self.places.hubs and self._is_set(name)
        self._add(name, self._hub(name) if hub else self._operand(op, slot), (begin, end))

    def inference(self) -> None:
        for name in self._inputs():
            self._input(name)
        for op, j, name in self._results():
            begin = self.when.position[op.name]
            self._add(name, self._result(op, j), (begin, begin + 1))
            if name in self.places.outputs:
                tensor = self.graph.tensors[name]
                end = self.when.end + 1
                self._add(
                    name, (self.places.outputs[name], ("delivered", tensor.shape, tensor.dtype)), (begin + 1, end)
                )
                continue
            readers = self.graph.consumers.get(name, ())
            if not readers:
                continue
            op, slot = max(readers, key=lambda r: self.when.position[r[0].name])
            last = self.when.position[op.name]
            if name not in self.places.hubs:
                self._add(name, self._operand(op, slot), (begin + 1, last + 1))
            elif self._is_set(name):
                self._add(name, self._hub(name), (begin + 1, last + 1))
            else:
                self._add(name, self._hub(name), (begin + 1, last))
                self._add(name, self._operand(op, slot), (last, last + 1))

    def _inputs(self) -> Iterator[str]:
        for name in self.graph.inputs:
            if self.graph.tensors[name].role is Role.INPUT and self.graph.tensors[name].shape is not None:
                yield name

    def _input(self, name: str) -> None:
        """Inputs are there from the beginning, in the layout of each reader."""
        readers = [r for r in self.graph.consumers.get(name, ()) if r[0].name in self.places.op_nodes]
        if readers:
            op, slot = max(readers, key=lambda r: self.when.needed(*r))
            self._add(name, self._operand(op, slot), (0, self.when.needed(op, slot)))

    def _results(self) -> Iterator[tuple[Op, int, str]]:
        for op in self.graph.ops:
            if op.name in self.places.op_nodes:
                for j, name in enumerate(op.outputs):
                    if name and self.graph.tensors[name].shape is not None and self.when.counts(name):
                        yield op, j, name

    def _result(self, op: Op, j: int) -> tuple[int, _Case]:
        return self.places.op_nodes[op.name], ("result", self.places.class_of[op.name], j)

    def _operand(self, op: Op, slot: int) -> tuple[int, _Case]:
        return self.places.op_nodes[op.name], ("operand", self.places.class_of[op.name], slot)

    def _hub(self, name: str) -> tuple[int, _Case]:
        node, alike = self.places.hubs[name]
        return node, ("hub", alike)

    def _is_set(self, name: str) -> bool:
        readers = {op.name for op, _ in self.graph.consumers.get(name, ())}
        return len(readers) + (name in self.places.outputs) <= MAX_SET_READERS

    def _add(self, name: str, place: tuple[int, _Case], interval: _Interval) -> None:
        if interval[0] < interval[1]:
            self.items.append(_Item(name, *place, interval))

    def apart(self) -> list[Held]:
        """The items of one node and interval together; of tensors that may share storage one at a time, the longest."""
        root = _roots(self.when)
        taken: dict[str, list[_Interval]] = defaultdict(list)
        by_interval: dict[tuple[int, _Interval], list[_Case]] = defaultdict(list)
        for item in sorted(self.items, key=lambda i: (i.interval[0] - i.interval[1], i.interval)):
            others = taken[root.get(item.tensor, item.tensor)]
            (a, b), shared = item.interval, root.get(item.tensor, item.tensor)
            if self.graph.tensors[shared].role is Role.PARAMETER or any(a < d and c < b for c, d in others):
                continue
            others.append(item.interval)
            by_interval[item.node, item.interval].append(item.case)
        return [
            Held(node, tuple(cases), interval) for (node, interval), cases in sorted(by_interval.items(), key=_order)
        ]


def _order(entry: tuple[tuple[int, _Interval], list[_Case]]) -> tuple[int, int, int]:
    """Of one node the longest first."""
    node, (a, b) = entry[0]
    return node, a - b, a


def _roots(when: Instants) -> dict[str, str]:
    """Tensor that shares storage → the one whose it is."""
    root: dict[str, str] = {}
    for op in when.graph.ops:
        for t in op.outputs:
            if t in when.what.views:
                root[t] = root.get(op.inputs[0], op.inputs[0])
    return root


def _gradients(when: Instants, places: Places) -> list[Held]:
    """What the backward of the fullest operator takes and gives, but for gradients of weights."""
    weights = made_of_parameters(when.graph)
    out = []
    for op in _fullest(when, places):
        slots = tuple(i for i, t in enumerate(op.inputs) if t not in weights)
        at = when.back(op.name)
        out.append(Held(places.op_nodes[op.name], (("gradients", places.class_of[op.name], slots),), (at, at + 1)))
    return out


def _fullest(when: Instants, places: Places) -> list[Op]:
    """In every quarter of the backward pass the operator at which a whole model on one device holds most."""
    graph, n = when.graph, len(when.graph.ops)
    ends: dict[int, int] = defaultdict(int)  # elements freed after an operator's backward
    level = 0
    for name in graph.tensors:
        needed = [when.back(op.name) for op, slot in graph.consumers.get(name, ()) if when.saved(op, slot)]
        if needed and graph.tensors[name].role is not Role.PARAMETER:
            level += graph.tensors[name].elements
            ends[max(needed)] += graph.tensors[name].elements
    together = Counter(when.what.kernel.values())
    best: dict[int, tuple[int, Op]] = {}
    for op in reversed(graph.ops):
        alone = together[when.what.kernel[op.name]] == 1 and when.what.views.isdisjoint(op.outputs)
        if op.name in places.op_nodes and when.differentiated(op) and alone and when.rules[op.name].cost.kind != "free":
            given = sum(graph.tensors[t].elements for t in op.outputs if t in when.active)
            wanted = when.rules[op.name].differentiable
            made = sum(graph.tensors[t].elements for i, t in enumerate(op.inputs) if i in wanted and t in when.active)
            quarter = when.position[op.name] * _PROBES // n
            if quarter not in best or best[quarter][0] < level + given + made:
                best[quarter] = level + given + made, op
        level -= ends.get(when.back(op.name), 0)
    return [op for _, op in best.values()]
