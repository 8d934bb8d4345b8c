"""A program cut into pipeline stages: what each stage runs, once a step and for every micro-batch, and what is sent.

The program is cut into chunks, one after the other, of which each stage holds one, or, where passes are interleaved,
several.

- A chunk runs its operators.  What is made from a tensor (redistributions, forward and of its gradient) runs where the
  tensor is made.  Parameters, inputs and constants lie in every chunk that reads them.
- A value that later chunks read goes from chunk to chunk, in the layouts in which these read it; contributions to its
  gradient come back the same way, in the layouts in which they are made, added up on the way.
- Parameters are brought to the layouts in which they are read at the beginning of a step.  Their gradients are added up
  over the micro-batches as they are computed, and brought to where they are stored behind the last one.
- Then the gradients of parameters that several stages hold are summed: first of a stage's own chunks, then between the
  stages.
- A backward pass that a schedule runs in two parts runs here whole, where the gradient of its input is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cost_models.pipeline.orders import device_order, holders_of_chunks, occurrences, stage_numbers
from planner.ir import Layout, Op, Role
from planner.lowering.program import Convert, Instruction, Load, Program, Run, Seed

__all__ = ["ChunkProgram", "Event", "Passes", "Phase", "Staged", "Transfer", "passes", "staged"]

_Key = tuple[str, Layout]
Phase = Literal["begin", "forward", "backward", "end"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Every rank of the stage that holds chunk `source` sends its shard of a tensor, or of its gradient, to the rank at
    the same place of the stage that holds chunk `target`."""

    tensor: str
    layout: Layout
    gradient: bool
    source: int
    target: int

    @property
    def what(self) -> str:
        return f"{'the gradient of ' if self.gradient else ''}{self.tensor} as {self.layout}"


@dataclass(frozen=True, slots=True)
class Event:
    """A part of a step that a stage runs without waiting, of one of its chunks: `begin` and `end` once, the others for
    a micro-batch.  Chunks have the numbers of the model's."""

    phase: Phase
    micro_batch: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Passes:
    """What each stage runs, in order; `holder[k]` is the stage of chunk k of the model."""

    stages: tuple[tuple[Event, ...], ...]
    holder: tuple[int, ...]

    def name(self, chunk: int) -> str:
        """What messages call the chunk: its stage, where that has no other."""
        stage = f"stage {self.holder[chunk]}"
        return stage if len(self.holder) == len(self.stages) else f"chunk {chunk} ({stage})"


@dataclass(frozen=True, slots=True)
class ChunkProgram:
    """What a stage runs of one chunk.  Of a pass it first receives, by phase, and last sends.  `held`: the parameters
    of its stage."""

    runs: Mapping[Phase, tuple[Instruction, ...]]
    receives: Mapping[Phase, tuple[Transfer, ...]]
    sends: Mapping[Phase, tuple[Transfer, ...]]
    held: frozenset[str]

    def received(self, phase: Phase) -> tuple[Transfer, ...]:
        return self.receives.get(phase, ())

    def sent(self, phase: Phase) -> tuple[Transfer, ...]:
        return self.sends.get(phase, ())

    def instructions(self, phase: Phase) -> tuple[Instruction, ...]:
        return self.runs[phase]


@dataclass(frozen=True, eq=False)
class Staged:
    """`program` is that of a micro-batch in one stage, `chunks` in their order.  `chunk_of`: operator → chunk; `sums`:
    parameter → groups of ranks, which count stage by stage, that sum its gradient.  `defects`: what a chunk reads and
    cannot have."""

    program: Program
    chunk_of: Mapping[str, int]
    chunks: tuple[ChunkProgram, ...]
    passes: Passes
    micro_batches: int
    sums: Mapping[str, tuple[tuple[int, ...], ...]]
    defects: tuple[str, ...]

    @property
    def devices(self) -> int:
        return len(self.passes.stages) * self.program.mesh.devices


def staged(
    program: Program,
    chunk_of: Mapping[str, int],
    passes: Passes,
    held: Mapping[str, Iterable[int]],
    sums: Mapping[str, Iterable[Iterable[int]]],
) -> Staged:
    """`chunk_of`, `sums`: as of `Staged`; `held`: parameter → the stages that hold it."""
    stages = {n: frozenset(s) for n, s in held.items()}
    of_chunks = {n: frozenset(k for k, s in enumerate(passes.holder) if s in found) for n, found in stages.items()}
    cut = _Cut(program, chunk_of, passes, of_chunks)
    parts = tuple(cut.chunk(k) for k in range(len(passes.holder)))
    count = len({e.micro_batch for events in passes.stages for e in events})
    groups = {n: tuple(tuple(g) for g in found) for n, found in sums.items()}
    return Staged(program, chunk_of, parts, passes, count, groups, tuple(dict.fromkeys(cut.defects)))


class _Cut:
    def __init__(
        self, program: Program, chunk_of: Mapping[str, int], passes: Passes, held: Mapping[str, frozenset[int]]
    ) -> None:
        self.program, self.graph, self.chunk_of = program, program.graph, chunk_of
        self.passes, self.count, self.held = passes, len(passes.holder), held
        self.defects: list[str] = []
        turn = _turn(program)
        self.forward = [self._of_chunk(k, program.instructions[:turn]) for k in range(self.count)]
        self.backward = [self._of_chunk(k, program.instructions[turn:]) for k in range(self.count)]
        self.values = self._value_transfers()
        self.gradients = self._gradient_transfers()

    def chunk(self, chunk: int) -> ChunkProgram:
        begin: dict[Instruction, None] = {}
        for i in (*self.forward[chunk], *self.backward[chunk]):
            if self._once(i) and not _of_gradient(i):
                begin[i] = None
        received = {t.tensor for t in self.gradients if t.target == chunk}
        backward = [i for i in self.backward[chunk] if not self._once(i)]
        end = [i for i in self.backward[chunk] if self._once(i) and _of_gradient(i)]
        return ChunkProgram(
            {
                "begin": tuple(begin),
                "forward": tuple(i for i in self.forward[chunk] if not self._once(i)),
                "backward": tuple(self._feasible(backward, chunk, received)),
                "end": tuple(self._feasible(end, chunk, None)),
            },
            {
                "forward": tuple(t for t in self.values if t.target == chunk),
                "backward": tuple(t for t in self.gradients if t.target == chunk),
            },
            {
                "forward": tuple(t for t in self.values if t.source == chunk),
                "backward": tuple(t for t in self.gradients if t.source == chunk),
            },
            frozenset(n for n, chunks in self.held.items() if chunk in chunks),
        )

    def _of_chunk(self, chunk: int, instructions: Iterable[Instruction]) -> list[Instruction]:
        return [i for i in instructions if chunk in self._chunks(i)]

    def _chunks(self, i: Instruction) -> frozenset[int]:
        if isinstance(i, Run):
            return frozenset([self.chunk_of[i.op]])
        made = self.graph.producers.get(i.tensor)
        if made is not None:
            return frozenset([self.chunk_of[made.name]])
        only = i.reader if isinstance(i, Convert) else ""
        readers = self.graph.consumers.get(i.tensor, ())
        reading = frozenset(self.chunk_of[op.name] for op, _ in readers if not only or op.name == only)
        return reading & self.held[i.tensor] if i.tensor in self.held else reading

    def _once(self, i: Instruction) -> bool:
        """Whether it happens once a step: parameters are loaded and redistributed, their gradients redistributed."""
        return not isinstance(i, Run) and self.graph.tensors[i.tensor].role is Role.PARAMETER

    # What crosses

    def _value_transfers(self) -> tuple[Transfer, ...]:
        made: dict[_Key, int] = {}
        for k in range(self.count):
            for i in self.forward[k]:
                made.update({key: k for key in self._writes(i) if key[0] in self.graph.producers})
        last: dict[_Key, int] = {}
        for k in range(self.count):
            here: set[_Key] = set()
            for i in (*self.forward[k], *self.backward[k]):
                for key in self._reads(i):
                    if key in here:
                        continue
                    here.add(key)
                    if made.get(key, self.count) < k:
                        last[key] = k
                    else:
                        self.defects.append(self._missing(i, key, k, made.get(key)))
                here.update(self._writes(i))
        order = {key: n for n, key in enumerate(made)}
        return tuple(
            Transfer(*key, False, k, k + 1)
            for key in sorted(last, key=order.__getitem__)
            for k in range(made[key], last[key])
        )

    def _missing(self, i: Instruction, key: _Key, chunk: int, made: int | None) -> str:
        name, layout = key
        op = self.graph.op(i.op) if isinstance(i, Run) else None
        who = f"{op.type} {op.name}" if op is not None else f"a redistribution of {name}"
        here, holder = self.passes.name(chunk), self.passes.holder
        if name in self.held:
            holds = ", ".join(map(str, sorted({holder[k] for k in self.held[name]}))) or "none"
            return f"{here}: {who} reads {name} as {layout}; the stages that hold the parameter are {holds}"
        where = "no stage makes" if made is None else f"{self.passes.name(made)} makes and never sends to {here}"
        return f"{here}: {who} reads {name} as {layout}, which {where}"

    def _gradient_transfers(self) -> tuple[Transfer, ...]:
        """Contributions go back to where the tensor is made, chunk by chunk, in the layouts they are made in."""
        first: dict[_Key, int] = {}
        for op in self.graph.ops:
            for key in self._contributed(op):
                if key[0] in self.graph.producers:
                    first[key] = max(first.get(key, 0), self.chunk_of[op.name])
        return tuple(
            Transfer(*key, True, k, k - 1)
            for key, latest in first.items()
            for k in range(latest, self.chunk_of[self.graph.producers[key[0]].name], -1)
        )

    def _contributed(self, op: Op) -> list[_Key]:
        """Gradients that the operator's backward pass adds to."""
        active, rule = self.program.active, self.program.rules[op.name]
        if not any(t in active for t in op.outputs):
            return []
        layouts = self.program.strategies[op.name].operand_gradients
        return [
            self._key(n, layouts[slot])
            for slot, n in enumerate(op.inputs)
            if n in active and slot in rule.differentiable and slot < len(layouts)
        ]

    def _feasible(
        self, instructions: list[Instruction], chunk: int, received: set[str] | None
    ) -> Iterable[Instruction]:
        """Redistributions of gradients of which there are contributions.  Contributions that several readers of other
        micro-batches or stages make in one layout meet before the first redistribution takes them, which leaves the
        others nothing; and a stage lacks those that readers in other stages make."""
        there: set[_Key] = set()
        if received is None:
            own = [op for op in self.graph.ops if self.chunk_of[op.name] == chunk]
            there.update(k for op in own for k in self._contributed(op))
        else:
            there.update((t.tensor, t.layout) for t in self.gradients if t.target == chunk)
        for i in instructions:
            if isinstance(i, Convert) and i.gradient:
                merged = received is None or i.tensor in received
                if (i.tensor, i.source) not in there and merged:
                    continue
                there.discard((i.tensor, i.source))
                there.add((i.tensor, i.target))
            elif isinstance(i, Seed):
                there.add((i.tensor, i.layout))
            elif isinstance(i, Run) and i.backward:
                there.update(self._contributed(self.graph.op(i.op)))
            yield i

    # What instructions read and write

    def _key(self, name: str, layout: Layout | None) -> _Key:
        return name, Layout.replicated(self.graph.tensors[name].rank) if layout is None else layout

    def _reads(self, i: Instruction) -> list[_Key]:
        if isinstance(i, Convert):
            return [] if i.gradient else [(i.tensor, i.source)]
        if not isinstance(i, Run) or i.backward:  # what the backward pass reads, the forward pass has read or made
            return []
        op, strategy = self.graph.op(i.op), self.program.strategies[i.op]
        shape = self.program.rules[i.op].shape_operand
        pairs = enumerate(zip(op.inputs, strategy.operands, strict=True))
        return [self._key(n, x) for slot, (n, x) in pairs if n and slot != shape]

    def _writes(self, i: Instruction) -> list[_Key]:
        if isinstance(i, Load):
            return [(i.tensor, i.layout)]
        if isinstance(i, Convert):
            return [] if i.gradient else [(i.tensor, i.target)]
        if not isinstance(i, Run) or i.backward:
            return []
        op, strategy = self.graph.op(i.op), self.program.strategies[i.op]
        return [self._key(n, x) for n, x in zip(op.outputs, strategy.results, strict=True) if n]


def _of_gradient(i: Instruction) -> bool:
    return isinstance(i, Convert) and i.gradient


def _turn(program: Program) -> int:
    """The first instruction behind the forward pass."""
    seen: set[str] = set()
    for n, i in enumerate(program.instructions):
        if isinstance(i, Seed) or (isinstance(i, Run) and (i.backward or i.op in seen)):
            return n
        if isinstance(i, Run):
            seen.add(i.op)
    return len(program.instructions)


def passes(order: str, stages: int, chunks: int, micro_batches: int, *, training: bool) -> Passes:
    """The passes of a schedule that `cost_models.pipeline` knows, of so many `chunks` in each stage, between what
    happens once a step.  Without training there are no backward passes."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    out = []
    for stage, own in enumerate(stage_numbers(order, stages, chunks).tolist()):
        codes = device_order(order, stages, chunks, micro_batches, stage)
        run = [
            Event(phases[code // chunks], number, own[code % chunks])
            for code, number in zip(codes.tolist(), occurrences(codes, micro_batches).tolist(), strict=True)
            if code // chunks < (2 if training else 1)
        ]
        out.append((*(Event("begin", chunk=k) for k in own), *run, *(Event("end", chunk=k) for k in own)))
    return Passes(tuple(out), holders_of_chunks(order, stages, chunks))
