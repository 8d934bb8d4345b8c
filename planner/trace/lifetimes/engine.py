"""When every value of a program is allocated and freed.

A value is allocated when the instruction that makes it runs, and freed after the last instruction that reads it; in
training, what the backward pass of a kernel reads is what `planner.work.fusion` says, or, of an operator that is a
kernel by itself, its rule.  An instruction holds what it reads and what it makes at once.

- A kernel of several operators reads what enters it until the last of them has run, forward as backward.  Values inside
  it take no memory, nor do their gradients, but where a redistribution takes them out and brings them back.
- Reshaped tensors, and transposed or cast weights, share the storage of what they are made from; where kernels are
  joined, they read all that is only rearranged with strides.
- A redistribution of several steps holds two neighbouring ones at a time, beside a source that is still to be read.
- The gradient of an activation lives from its first contribution until the producer's backward pass; a further
  contribution is held beside it while it is added.
- Collectives inside operators receive into buffers of the bytes that the rule states.
- Inputs are there from the beginning, and constants, with what is computed from constants alone, always.
- Blocks that are recomputed make their values again.
- Parameters and their gradients are not counted here but for copies of parameters in other layouts than they are stored
  in, in inference: from their redistribution to their last reader.

Not counted: the allocator's rounding and fragmentation, scratch space of kernels, statistics that kernels keep for
their backward pass, and the runtime's own memory (the profile's reserve).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.ir import Op, Role
from planner.lowering import Instruction, Load, Program, Redistribute, Run, Seed
from planner.trace.lifetimes.storage import Key, Layouts, Storage
from planner.trace.placed import Placed
from planner.work.activity import gradient_sources
from planner.work.seen import Seen

__all__ = ["storages_of"]


@dataclass(slots=True, eq=False)
class _Death:
    """The last instruction that reads a value, and what of its readers a storage is told."""

    end: int
    readers: set[int] = field(default_factory=set)
    core: bool = True


def storages_of(
    at: Placed, what: Seen, instructions: Sequence[Instruction], *, gathered_again: bool
) -> tuple[list[Storage], int]:
    """All that the instructions allocate, and the first of them behind the forward pass.

    `gathered_again`: what an operator's backward pass reads of a gathered operand is kept as it was before, and
    gathered once more; else the gathered operand is kept.
    """
    found = _Lifetimes(at, what, instructions, gathered_again=gathered_again)
    return found.storages, found.turn


class _Lifetimes:
    def __init__(self, at: Placed, what: Seen, instructions: Sequence[Instruction], *, gathered_again: bool) -> None:
        self.at, self.what, self.instructions = at, what, instructions
        self.program: Program = at.program
        self.graph, self.active, self.fixed = at.graph, at.active, at.facts.fixed
        self.unit: Mapping[str, int] = at.facts.unit
        # What is made of weights alone, runtimes that join kernels keep as its readers want it.
        self.weights = at.facts.weights if at.fusion.chains else frozenset(t.name for t in at.graph.parameters)
        self.gathered_again = gathered_again
        self.layouts = Layouts(at)
        self.size, self.key = self.layouts.size, self.layouts.key
        self.last = max(0, len(instructions) - 1)
        self.storages: list[Storage] = []
        self.values: dict[Key, Storage] = {}
        self.gradients: dict[Key, Storage] = {}
        self._operands: dict[str, tuple[list[Key | None], list[Key | None]]] = {}
        self.brought: set[Key] = set()  # gradients that redistributions take out of kernels
        self.ends = self._ends()
        self.deaths: dict[tuple[int, Key], _Death] = {}
        self._find_deaths()
        self._run()

    # Where instructions belong

    def _ends(self) -> list[int]:
        """By instruction that runs an operator, the one that ends its kernel; also where the forward pass ends."""
        ends = list(range(len(self.instructions)))
        last: dict[tuple[int, int, bool], int] = {}
        segment, before = 0, False
        self.turn = len(ends)
        begun: set[str] = set()
        keys: list[tuple[int, int, bool] | None] = []
        kernel = self.what.kernel
        for i, x in enumerate(self.instructions):
            key = None
            if isinstance(x, Run):
                if self.turn > i and (x.backward or x.op in begun):
                    self.turn = i
                begun.add(x.op)
                if x.backward != before:
                    segment, before = segment + (not x.backward), x.backward
                key = kernel[x.op], 0 if x.backward else segment, x.backward
                last[key] = i
            elif isinstance(x, Seed):
                self.turn = min(self.turn, i)
            elif isinstance(x, Redistribute) and x.gradient:
                self.brought.add(self.key(x.tensor, x.source))
            keys.append(key)
        for i, key in enumerate(keys):
            if key is not None:
                ends[i] = last[key]
        return ends

    def _of(self, op: Op) -> tuple[list[Key | None], list[Key | None]]:
        """What an operator reads and what it makes."""
        found = self._operands.get(op.name)
        if found is None:
            s, keys = self.program.strategies[op.name], self.layouts.keys
            found = self._operands[op.name] = keys(op.inputs, s.operands), keys(op.outputs, s.results)
        return found

    # What is read when

    def _find_deaths(self) -> None:
        """(instruction, value that it makes) → how long it lives, until it is made again."""
        last: dict[Key, _Death] = {k: _Death(self.last, core=False) for k in self._delivered()}
        deaths, ends, inside = self.deaths, self.ends, self.what.inside
        for i in range(len(self.instructions) - 1, -1, -1):
            x = self.instructions[i]
            if isinstance(x, Run):
                op = self.graph.op(x.op)
                if x.backward:
                    self._saved(i, op, last)
                    continue
                reads, writes = self._of(op)
                for key in writes:
                    if key and key in last:
                        deaths[i, key] = last.pop(key)
                again = i >= self.turn
                for key in reads:
                    if key and not (key[0] in inside and self._as_made(key)):
                        death = last.get(key)
                        if death is None:
                            death = last[key] = _Death(ends[i])
                        elif death.end < ends[i]:
                            death.end = ends[i]
                        if again:
                            death.readers.add(self.unit[x.op])
                            death.core = False
            elif isinstance(x, Redistribute):
                if not x.gradient:
                    target, source = self.key(x.tensor, x.target), self.key(x.tensor, x.source)
                    made = last.pop(target, None)
                    if made is not None:
                        deaths[i, target] = made
                    death = last.setdefault(source, _Death(i, core=i < self.turn))
                    if i >= self.turn and made is not None:
                        death.readers |= made.readers
            elif isinstance(x, Load):
                key = self.key(x.tensor, x.layout)
                if key in last:
                    deaths[i, key] = last.pop(key)

    def _as_made(self, key: Key) -> bool:
        producer = self.graph.producers[key[0]]
        return key in self._of(producer)[1]

    def _saved(self, i: int, op: Op, last: dict[Key, _Death]) -> None:
        """What the backward pass of an operator's kernel reads through it."""
        saved = self.what.saved.get(op.name)
        if not saved:
            return
        for x in saved:
            reads, writes = self._of(self.graph.op(x.op))
            key = (writes if x.result else reads)[x.place]
            if key is None:
                continue
            if self.gathered_again:
                key = self._resting(i, key)
            death = last.get(key)
            if death is None:
                death = last[key] = _Death(self.ends[i])
            death.end = max(death.end, self.ends[i])
            death.readers.add(self.unit[op.name])
            death.core = death.core and x.core

    def _resting(self, i: int, key: Key) -> Key:
        """As what is saved lies between the passes; it is gathered again where it is read."""
        rest = self.at.rest.get(key[0])
        if rest is None or key[0] in self.at.facts.weights:
            return key
        resting = key[0], self.layouts.number(rest)
        more = self.size(key) - self.size(resting)
        if more < 0 or resting == key:
            return key
        if more > 0:
            self._new("buffers", self.size(key), i, i)
        return resting

    def _delivered(self) -> Iterator[Key]:
        """Results of the graph in the layouts they are handed out in: of those with nothing pending, one that was made
        for nobody else, where there is one."""
        wanted = set(gradient_sources(self.graph) if self.active else self.graph.outputs)
        made: dict[str, dict[Key, None]] = {t: {} for t in self.graph.tensors if t in wanted}
        read: set[Key] = set()
        moves = [c for c in self.instructions if isinstance(c, Redistribute) and not c.gradient and c.tensor in wanted]
        for t in wanted:
            if t in self.graph.producers:
                producer = self.graph.producers[t]
                key = self._of(producer)[1][producer.outputs.index(t)]
                if key and not self.layouts.known[key[1]].partial:
                    made[t][key] = None
            for op, slot in self.graph.consumers.get(t, ()):
                if (wanted_as := self._of(op)[0][slot]) is not None:
                    read.add(wanted_as)
        for c in moves:
            read.add(self.key(c.tensor, c.source))
            if not c.target.partial:
                made[c.tensor][self.key(c.tensor, c.target)] = None
        for keys in made.values():
            if keys:
                yield next((k for k in keys if k not in read), next(iter(keys)))

    # Instructions

    def _run(self) -> None:
        for i, x in enumerate(self.instructions):
            if isinstance(x, Run):
                op = self.graph.op(x.op)
                if x.backward:
                    self._backward(i, op)
                else:
                    self._forward(i, op)
            elif isinstance(x, Redistribute):
                self._redistribute(i, x)
            elif isinstance(x, Load):
                self._load(i, x)
            else:
                key = self.key(x.tensor, x.layout)
                self.gradients[key] = self._new("activation_gradients", self.size(key), i, i)
        for (name, number), storage in self.gradients.items():
            if self.program.final_gradients.get(name) == self.layouts.known[number]:
                storage.end = self.last

    def _new(self, cause: str, size: int, begin: int, end: int) -> Storage:
        storage = Storage(cause, size, begin, end)
        self.storages.append(storage)
        return storage

    def _made(self, cause: str, i: int, key: Key, size: int | None = None) -> Storage:
        death = self.deaths.get((i, key))
        size = self.size(key) if size is None else size
        if death is None:
            storage = self._new(cause, size, i, i)
        else:
            storage = self._new(cause, size, i, death.end)
            storage.readers, storage.core = set(death.readers), death.core and bool(death.readers)
        self.values[key] = storage
        return storage

    def _resident(self, name: str, size: int) -> Storage:
        storage = self._new("inputs", size, 0, self.last)
        storage.resident = True
        storage.readers = {self.unit[op.name] for op, _ in self.graph.consumers.get(name, ())}
        return storage

    def _load(self, i: int, load: Load) -> None:
        key = self.key(load.tensor, load.layout)
        role = self.graph.tensors[load.tensor].role
        if role is Role.PARAMETER:
            self.values[key] = Storage("weights", 0, 0, self.last)  # counted elsewhere
        elif role is Role.INPUT:
            self._made("inputs", i, key).begin = 0
        else:
            self.values[key] = self._resident(load.tensor, 0 if load.tensor in self.what.masks else self.size(key))

    def _forward(self, i: int, op: Op) -> None:
        reads, writes = self._of(op)
        self._inner(i, op)
        for key in writes:
            if key is None:
                continue
            shared = self._shared(key, reads)
            if shared is not None:
                death = self.deaths.get((i, key))
                if death is not None:
                    shared.end = max(shared.end, death.end)
                    shared.core = death.core if not shared.readers else shared.core and death.core
                    shared.readers |= death.readers
                self.values[key] = shared
            elif op.name in self.fixed:
                outside = any(c.name not in self.fixed for c, _ in self.graph.consumers.get(key[0], ()))
                counts = (outside or key[0] in self.graph.outputs) and key[0] not in self.what.masks
                self.values[key] = self._resident(key[0], self.size(key) if counts else 0)
            elif key[0] in self.weights or (key[0] in self.what.inside and (i, key) not in self.deaths):
                self.values[key] = Storage("activations", 0, i, i)
            else:
                self._made("activations", i, key)

    def _shared(self, key: Key, reads: Sequence[Key | None]) -> Storage | None:
        """The storage of the first operand, where the result lies in it."""
        if key[0] not in self.what.views or not reads or reads[0] is None:
            return None
        whole = key[0] in self.what.strided or self.size(reads[0]) == self.size(key)
        return self.values.get(reads[0]) if whole else None

    def _inner(self, i: int, op: Op, *, backward: bool = False) -> None:
        """Buffers that collectives inside the operator receive into."""
        inner = self.program.strategies[op.name].inner
        if not inner:
            return
        mesh, settings = self.program.mesh, self.at.settings
        size = sum(
            settings.payload_bytes(c) * (mesh.size(c.axes) if c.kind == "all_gather" else 1)
            for c in inner
            if c.backward == backward
        )
        if size:
            self._new("buffers", size, i, i)

    def _redistribute(self, i: int, move: Redistribute) -> None:
        source, target = self.key(move.tensor, move.source), self.key(move.tensor, move.target)
        parameter = move.tensor in self.weights
        if move.gradient:
            if move.tensor in self.at.facts.weights:
                return
            self._taken(source, i)
            self._contribute(i, target)
            survives = False
        else:
            if parameter and self.at.settings.training:
                self.values[target] = Storage("weights", 0, 0, self.last)
                return
            old = self.values.get(source)
            survives = old is not None and old.end > i
            known = self.values.get(target)
            if old is not None and old.resident:
                if known is not None and known.resident:
                    return
                counts = move.tensor not in self.what.masks
                self.values[target] = self._resident(target[0], self.size(target) if counts else 0)
            else:
                self._made("weight_copies" if parameter else "activation_copies", i, target)
        between = self._between(move, survives=survives)
        if between:
            self._new("buffers", between, i, i)

    def _between(self, move: Redistribute, *, survives: bool) -> int:
        """Bytes that the steps between hold beyond source and target."""
        if len(move.steps) < 2:
            return 0
        sizes = [self.size(self.key(move.tensor, x)) for x in (move.source, *(s.target for s in move.steps))]
        pairs = [(0 if survives and k == 0 else a) + b for k, (a, b) in enumerate(itertools.pairwise(sizes))]
        return max(0, max(pairs) - sizes[-1] - (0 if survives else sizes[0]))

    def _backward(self, i: int, op: Op) -> None:
        s, active, weights = self.program.strategies[op.name], self.active, self.at.facts.weights
        made = self.layouts.keys(op.outputs, s.result_gradients)
        results = [k if k is not None and k[0] in active and k[0] not in weights else None for k in made]
        given = [None if k is None else self._taken(k, i, inside=k[0] in self.what.inside) for k in results]
        self._inner(i, op, backward=True)
        wanted, kernel = self.program.rules[op.name].differentiable, self.what.kernel
        for slot, key in enumerate(self.layouts.keys(op.inputs, s.operand_gradients)):
            if key is None or (name := key[0]) not in active or slot not in wanted or name in weights:
                continue
            producer = self.graph.producers.get(name)
            within = name in self.what.inside and producer is not None and kernel[producer.name] == kernel[op.name]
            if within and key not in self.brought:
                continue
            passed = given[0] if slot == 0 and given else None
            first = results[0] if results else None
            if passed is None or first is None or not self._passes(first, key):
                self._contribute(i, key)
            elif key not in self.gradients:
                self.gradients[key] = passed

    def _passes(self, result: Key, operand: Key) -> bool:
        return result[0] in self.what.views and self.size(result) == self.size(operand)

    def _taken(self, key: Key, i: int, *, inside: bool = False) -> Storage | None:
        """A gradient used up at i; one that is not there is what a later stage sends."""
        held = self.gradients.pop(key, None)
        if held is None:
            if inside:
                return None
            held = self._new("activation_gradients", self.size(key), min(self.turn, i), i)
        held.end = max(held.end, self.ends[i])
        return held

    def _contribute(self, i: int, key: Key) -> None:
        held = self.gradients.get(key)
        made = self._new("activation_gradients", self.size(key), i, i)
        if held is None:
            self.gradients[key] = made
        else:
            held.end = max(held.end, i)
