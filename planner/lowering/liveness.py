"""What one device holds at every instruction of a program.

A value is allocated when the instruction that makes it runs, and freed after the last instruction that reads it; in
training, what the backward pass of an operator reads is what its rule says.  An instruction holds what it reads and
what it makes at once.

- Parameters lie in their stored layout throughout, with the master copy and the optimizer's state of those that are
  trained.  Any other layout of a parameter is a copy, held from its redistribution to its last reader.
- Reshaped tensors, and transposed or cast weights, share the storage of what they are made from.
- A redistribution of several steps holds two neighbouring ones at a time, beside a source that is still to be read.
- The gradient of an activation lives from its first contribution until the producer's backward pass; a further
  contribution is held beside it while it is added.  A parameter's gradient lives as computed until it is redistributed,
  and as stored until the end of the step.
- Collectives inside operators receive into buffers of the bytes that the rule states.
- Inputs are there from the beginning, and constants, with what is computed from constants alone, always.
- Blocks that are recomputed make their values again.
- What another pipeline stage sends is there from the beginning, a gradient from the beginning of the backward pass.
- Where a step has several micro-batches, copies of parameters are held throughout, and so are parameters' gradients, as
  they are computed: they are redistributed when the last one is done.

Not counted: the allocator's rounding and fragmentation, scratch space of kernels, statistics that kernels keep for
their backward pass, and the runtime's own memory (the profile's reserve).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.ir import Layout, Op, Role
from planner.lowering.program import Convert, Instruction, Load, Program, Run, Seed
from planner.pricing.machine import Settings
from planner.pricing.views import shares_storage
from planner.work.activity import fixed_operators, gradient_sources, saved_slots

__all__ = ["CAUSES", "Liveness", "liveness"]

CAUSES: Final = (
    "weights",
    "gradients",
    "optimizer",
    "weight_copies",
    "activations",
    "activation_copies",
    "activation_gradients",
    "buffers",
    "inputs",
)

_Key = tuple[str, Layout]


@dataclass(frozen=True, eq=False)
class Liveness:
    """`held[c, i]`: bytes on one device for `CAUSES[c]` while instruction i runs, and, where gradients of several
    micro-batches are added, when the last one is done.  `waiting`: bytes of activations and inputs between the forward
    and the backward pass, which is what a further micro-batch in flight holds."""

    program: Program
    held: NDArray[np.int64]
    waiting: int

    @property
    def levels(self) -> NDArray[np.int64]:
        """Bytes in all, by instruction."""
        return np.asarray(self.held.sum(axis=0))

    @property
    def peak(self) -> int:
        return int(self.levels.max(initial=0))

    @property
    def where(self) -> int:
        """The first instruction at which the peak is held."""
        return int(self.levels.argmax())

    @property
    def parts(self) -> dict[str, int]:
        """The peak by cause."""
        return dict(zip(CAUSES, self.held[:, self.where].tolist(), strict=True))


def liveness(program: Program, settings: Settings, *, accumulate: bool = False) -> Liveness:
    """What a device holds while it runs the program, which was planned for `settings`; `accumulate`: as one of several
    micro-batches."""
    return _Lifetimes(program, settings, accumulate=accumulate).result()


@dataclass(slots=True, eq=False)
class _Storage:
    """Bytes from instruction `begin` to `end`, both included; `resident`: the same at every step."""

    cause: str
    size: int
    begin: int
    end: int
    resident: bool = False


class _Lifetimes:
    def __init__(self, program: Program, settings: Settings, *, accumulate: bool) -> None:
        self.program, self.graph, self.settings = program, program.graph, settings
        self.accumulate = accumulate
        self.fixed = fixed_operators(self.graph)
        count = len(program.instructions)
        self.turn = self._turn()
        self.last = count if accumulate else max(0, count - 1)
        self.summed: dict[str, int] = {}  # parameter → bytes that its gradient's redistribution makes
        self.storages: list[_Storage] = []
        self.values: dict[_Key, _Storage] = {}
        self.gradients: dict[_Key, _Storage] = {}
        self._sizes: dict[_Key, int] = {}
        self.received: dict[_Key, int] = {}  # what the program reads and does not make, until when
        self.deaths = self._deaths()

    def result(self) -> Liveness:
        self._parameters()
        for key, end in self.received.items():
            self.values[key] = self._new("activations", self._size(key), 0, end)
        for i, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, Load):
                self._load(i, instruction)
            elif isinstance(instruction, Seed):
                key = instruction.tensor, instruction.layout
                self.gradients[key] = self._new("activation_gradients", self._size(key), i, i)
            elif isinstance(instruction, Convert):
                self._convert(i, instruction)
            elif instruction.backward:
                self._backward(i, self.graph.op(instruction.op))
            else:
                self._forward(i, self.graph.op(instruction.op))
        for (name, layout), storage in self.gradients.items():
            if self.program.final_gradients.get(name) == layout:
                storage.end = self.last
        if self.summed:
            self._new("buffers", max(self.summed.values()), self.last, self.last)
        return Liveness(self.program, self._held(), sum(s.size for s in self.storages if self._waits(s)))

    def _waits(self, s: _Storage) -> bool:
        fed = s.cause in ("activations", "activation_copies", "inputs") and not s.resident
        return fed and s.begin < self.turn <= s.end

    def _turn(self) -> int:
        """The first instruction behind the forward pass."""
        seen: set[str] = set()
        for n, i in enumerate(self.program.instructions):
            if isinstance(i, Seed) or (isinstance(i, Run) and (i.backward or i.op in seen)):
                return n
            if isinstance(i, Run):
                seen.add(i.op)
        return len(self.program.instructions)

    def _held(self) -> NDArray[np.int64]:
        changes = np.zeros((len(CAUSES), self.last + 2), dtype=np.int64)
        for s in self.storages:
            row = CAUSES.index(s.cause)
            changes[row, s.begin] += s.size
            changes[row, s.end + 1] -= s.size
        return np.asarray(np.cumsum(changes, axis=1)[:, :-1])

    def _new(self, cause: str, size: int, begin: int, end: int) -> _Storage:
        storage = _Storage(cause, size, begin, end)
        self.storages.append(storage)
        return storage

    def _resident(self, size: int) -> _Storage:
        storage = _Storage("inputs", size, 0, self.last, resident=True)
        self.storages.append(storage)
        return storage

    def _size(self, key: _Key) -> int:
        """Bytes of one device's part."""
        if key not in self._sizes:
            name, layout = key
            whole = self.settings.tensor_bytes(self.graph.tensors[name])
            self._sizes[key] = -(-whole // layout.shards(self.program.mesh))
        return self._sizes[key]

    def _key(self, name: str, layout: Layout | None) -> _Key:
        return name, Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

    def _keys(self, names: Iterable[str], layouts: Iterable[Layout | None]) -> list[_Key | None]:
        return [self._key(n, x) if n else None for n, x in zip(names, layouts, strict=True)]

    # What is read when

    def _deaths(self) -> dict[tuple[int, _Key], int]:
        """(instruction, value that it makes) → the last instruction that reads this value before it is made again."""
        last: dict[_Key, int] = dict.fromkeys(self._delivered(), self.last)
        deaths: dict[tuple[int, _Key], int] = {}
        for i in range(len(self.program.instructions) - 1, -1, -1):
            instruction = self.program.instructions[i]
            for key in self._writes(instruction):
                deaths[i, key] = last.pop(key, i)
            for key in self._reads(instruction):
                last.setdefault(key, i)
        self.received = {k: i for k, i in last.items() if self._moves(k[0])}
        return deaths

    def _moves(self, name: str) -> bool:
        """Whether another stage may send the tensor."""
        return name in self.graph.producers and self.graph.tensors[name].shape is not None

    def _writes(self, i: Instruction) -> Iterator[_Key]:
        if isinstance(i, Load):
            yield i.tensor, i.layout
        elif isinstance(i, Convert) and not i.gradient:
            yield i.tensor, i.target
        elif isinstance(i, Run) and not i.backward:
            op = self.graph.op(i.op)
            yield from (k for k in self._keys(op.outputs, self.program.strategies[i.op].results) if k)

    def _reads(self, i: Instruction) -> Iterator[_Key]:
        if isinstance(i, Convert) and not i.gradient:
            yield i.tensor, i.source
        elif isinstance(i, Run):
            op, s, rule = self.graph.op(i.op), self.program.strategies[i.op], self.program.rules[i.op]
            saved = saved_slots(op, rule, self.program.active) if i.backward else range(len(op.inputs))
            for slot, key in enumerate(self._keys(op.inputs, s.operands)):
                if key and slot in saved:
                    yield key
            for slot, key in enumerate(self._keys(op.outputs, s.results)):
                if key and i.backward and slot in rule.saved_results:
                    yield key

    def _delivered(self) -> Iterator[_Key]:
        """Results of the graph in the layouts they are handed out in: of those with nothing pending, one that was made
        for nobody else, where there is one."""
        wanted = gradient_sources(self.graph) if self.program.active else self.graph.outputs
        made: dict[str, dict[Layout, None]] = {}
        read: set[_Key] = set()
        for i in self.program.instructions:
            for name, layout in self._writes(i):
                if name in wanted and not layout.partial:
                    made.setdefault(name, {})[layout] = None
            read.update(k for k in self._reads(i) if k[0] in wanted)
        for name, layouts in made.items():
            yield name, next((x for x in layouts if (name, x) not in read), next(iter(layouts)))

    # Instructions

    def _parameters(self) -> None:
        each, mesh = self.settings.per_parameter, self.program.mesh
        stored = {i.tensor: i.layout for i in reversed(self.program.instructions) if isinstance(i, Load)}
        for name, layout in stored.items():
            tensor = self.graph.tensors[name]
            if tensor.role is not Role.PARAMETER:
                continue
            if name in self.program.active and tensor.is_float:
                elements = -(-tensor.elements // layout.shards(mesh))
                self._new("weights", elements * (each.master + each.compute_copy), 0, self.last)
                self._new("optimizer", elements * each.optimizer, 0, self.last)
            else:
                self._new("weights", self._size((name, layout)), 0, self.last)

    def _load(self, i: int, load: Load) -> None:
        key = load.tensor, load.layout
        role = self.graph.tensors[load.tensor].role
        if role is Role.PARAMETER:
            self.values[key] = _Storage("weights", 0, 0, self.last)  # counted already
        elif role is Role.INPUT:
            self.values[key] = self._new("inputs", self._size(key), 0, self.deaths[i, key])
        else:
            self.values[key] = self._resident(self._size(key))

    def _forward(self, i: int, op: Op) -> None:
        s = self.program.strategies[op.name]
        reads, writes = self._keys(op.inputs, s.operands), self._keys(op.outputs, s.results)
        self._inner(i, op)
        for j, key in enumerate(writes):
            if key is None:
                continue
            death = self.deaths[i, key]
            shared = self.values.get(reads[0]) if j == 0 and reads and reads[0] else None
            viewed = shared is not None and self._is_view(op, reads[0], key)
            if viewed and shared is not None:
                shared.end = max(shared.end, death)
                self.values[key] = shared
            elif op.name in self.fixed:
                outside = any(c.name not in self.fixed for c, _ in self.graph.consumers.get(key[0], ()))
                size = self._size(key) if outside or key[0] in self.graph.outputs else 0
                self.values[key] = self._resident(size)
            else:
                self.values[key] = self._new("activations", self._size(key), i, death)

    def _is_view(self, op: Op, source: _Key | None, target: _Key) -> bool:
        return (
            source is not None
            and shares_storage(op, self.program.rules[op.name], self.graph)
            and self._size(source) == self._size(target)
        )

    def _inner(self, i: int, op: Op, *, backward: bool = False) -> None:
        """Buffers that collectives inside the operator receive into."""
        mesh = self.program.mesh
        size = sum(
            self.settings.payload_bytes(c) * (mesh.size(c.axes) if c.kind == "all_gather" else 1)
            for c in self.program.strategies[op.name].inner
            if c.backward == backward
        )
        if size:
            self._new("buffers", size, i, i)

    def _convert(self, i: int, move: Convert) -> None:
        source, target = (move.tensor, move.source), (move.tensor, move.target)
        store = self.gradients if move.gradient else self.values
        parameter = self.graph.tensors[move.tensor].role is Role.PARAMETER
        if parameter and move.gradient and self.accumulate:
            made = self._size(target) + self._between(move, survives=True)
            self.summed[move.tensor] = self.summed.get(move.tensor, 0) + made
            return
        old: _Storage | None
        if move.gradient:
            old = self._taken(source, i)
            self._contribute(i, target, "gradients" if parameter else "activation_gradients")
            survives = False
        else:
            old = store.get(source)
            survives = old is not None and old.end > i
            if old is not None and old.resident:
                store[target] = self._resident(self._size(target))
            else:
                cause = "weight_copies" if parameter else "activation_copies"
                whole = parameter and self.accumulate
                begin, end = (0, self.last) if whole else (i, self.deaths[i, target])
                store[target] = self._new(cause, self._size(target), begin, end)
        between = self._between(move, survives=survives)
        if between:
            self._new("buffers", between, i, i)

    def _between(self, move: Convert, *, survives: bool) -> int:
        """Bytes that the steps between hold beyond source and target."""
        sizes = [self._size((move.tensor, x)) for x in (move.source, *(s.target for s in move.steps))]
        if len(sizes) < 3:
            return 0
        pairs = [(0 if survives and k == 0 else a) + b for k, (a, b) in enumerate(itertools.pairwise(sizes))]
        return max(0, max(pairs) - sizes[-1] - (0 if survives else sizes[0]))

    def _backward(self, i: int, op: Op) -> None:
        s, rule, active = self.program.strategies[op.name], self.program.rules[op.name], self.program.active
        given: list[_Storage | None] = []
        results = self._keys(op.outputs, s.result_gradients)
        for key in results:
            if key is None or key[0] not in active:
                given.append(None)
                continue
            given.append(self._taken(key, i))
        self._inner(i, op, backward=True)
        for slot, key in enumerate(self._keys(op.inputs, s.operand_gradients)):
            if key is None or key[0] not in active or slot not in rule.differentiable:
                continue
            passed = given[0] if slot == 0 and given else None
            parameter = self.graph.tensors[key[0]].role is Role.PARAMETER
            cause = "gradients" if parameter else "activation_gradients"
            shared = passed is not None and results[0] is not None and self._is_view(op, results[0], key)
            if parameter and self.accumulate and key not in self.gradients:
                self.gradients[key] = self._new(cause, self._size(key), 0, self.last)
            if not shared:
                self._contribute(i, key, cause)
            elif passed is not None and key not in self.gradients:
                self.gradients[key], passed.cause = passed, cause

    def _taken(self, key: _Key, i: int) -> _Storage:
        """A gradient used up at i; one that is not there is what a later stage sends."""
        held = self.gradients.pop(key, None)
        taken = held or self._new("activation_gradients", self._size(key), min(self.turn, i), i)
        taken.end = i
        return taken

    def _contribute(self, i: int, key: _Key, cause: str) -> None:
        held = self.gradients.get(key)
        made = self._new(cause, self._size(key), i, i)
        if held is None:
            self.gradients[key] = made
        else:
            held.end = max(held.end, i)
