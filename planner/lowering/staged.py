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
- The gradient of a step is the mean over its micro-batches, of a loss that is a sum over samples their sum: each enters
  at the loss with its share.
- What is run again, gathered in every pass or let go in between, and backward passes in two parts: `RunAs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planner.cost_models.pipeline.orders import device_order, holders_of_chunks, is_split, occurrences, stage_numbers
from planner.frontends.resized.samples import share_of_micro_batch
from planner.ir import Layout, Op, Role
from planner.lowering.program import Instruction, Program, Redistribute, Run, Seed, StageInstruction
from planner.lowering.run_as import Listed, RunAs, again, by_units, deferred, freed, hosted, in_two
from planner.lowering.touched import Key, key_of, of_gradient, writes
from planner.rules.cost import Kind
from planner.work.activity import made_of_parameters

__all__ = ["ChunkProgram", "Event", "Passes", "Phase", "StageTransfer", "Staged", "passes", "staged"]

Phase = Literal["begin", "forward", "backward", "weights", "end"]


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """Every rank of the stage that holds chunk `source` sends its shard of a tensor, or of its gradient, to the rank at
    the same place of the stage that holds chunk `target`."""

    tensor: str
    layout: Layout
    gradient: bool
    source: int
    target: int

    @property
    def key(self) -> Key:
        return self.tensor, self.layout

    @property
    def what(self) -> str:
        return f"{'the gradient of ' if self.gradient else ''}{self.tensor} as {self.layout}"


@dataclass(frozen=True, slots=True)
class Event:
    """A part of a step that a stage runs without waiting, of one of its chunks: `begin` and `end` once, the others for
    a micro-batch, or for several that pass together, which have one number.  Chunks have the numbers of the model's.
    `weights`: what the backward pass has left of the gradients of weights, where it runs in two parts."""

    phase: Phase
    micro_batch: int = 0
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class Passes:
    """What each stage runs, in order; `holder[k]` is the stage of chunk k of the model.  `split`: whether backward
    passes run in two parts."""

    stages: tuple[tuple[Event, ...], ...]
    holder: tuple[int, ...]
    split: bool = False

    def name(self, chunk: int) -> str:
        """What messages call the chunk: its stage, where that has no other."""
        stage = f"stage {self.holder[chunk]}"
        return stage if len(self.holder) == len(self.stages) else f"chunk {chunk} ({stage})"


@dataclass(frozen=True, slots=True)
class ChunkProgram:
    """What a stage runs of one chunk.  Of a pass it first receives, by phase, and last sends.  `held`: the parameters
    of its stage."""

    runs: Mapping[Phase, tuple[StageInstruction, ...]]
    receives: Mapping[Phase, tuple[StageTransfer, ...]]
    sends: Mapping[Phase, tuple[StageTransfer, ...]]
    held: frozenset[str]

    def received(self, phase: Phase) -> tuple[StageTransfer, ...]:
        return self.receives.get(phase, ())

    def sent(self, phase: Phase) -> tuple[StageTransfer, ...]:
        return self.sends.get(phase, ())

    def instructions(self, phase: Phase) -> tuple[StageInstruction, ...]:
        return self.runs.get(phase, ())


@dataclass(frozen=True, eq=False)
class Staged:
    """`program` is that of a micro-batch in one stage, `chunks` in their order.  `chunk_of`: operator → chunk; `sums`:
    parameter → groups of ranks, which count stage by stage, that sum its gradient.  `defects`: what a chunk reads and
    cannot have.  `copies`: micro-batches that pass together; `weights`: tensors made of parameters alone."""

    program: Program
    chunk_of: Mapping[str, int]
    chunks: tuple[ChunkProgram, ...]
    passes: Passes
    micro_batches: int
    sums: Mapping[str, tuple[tuple[int, ...], ...]]
    defects: tuple[str, ...]
    copies: int = 1
    weights: frozenset[str] = frozenset()

    @property
    def last(self) -> Phase:
        """The pass that ends a micro-batch in a chunk."""
        if not self.program.active:
            return "forward"
        return "weights" if self.passes.split else "backward"

    def micro_batches_of(self, event: Event) -> range:
        """Those that pass together."""
        return range(event.micro_batch * self.copies, (event.micro_batch + 1) * self.copies)

    @property
    def devices(self) -> int:
        return len(self.passes.stages) * self.program.mesh.devices


def staged(
    program: Program,
    chunk_of: Mapping[str, int],
    passes: Passes,
    held: Mapping[str, Iterable[int]],
    sums: Mapping[str, Iterable[Iterable[int]]],
    how: RunAs | None = None,
) -> Staged:
    """`chunk_of`, `sums`: as of `Staged`; `held`: parameter → the stages that hold it."""
    how = RunAs() if how is None else how
    stages = {n: frozenset(s) for n, s in held.items()}
    of_chunks = {n: frozenset(k for k, s in enumerate(passes.holder) if s in found) for n, found in stages.items()}
    count = len({e.micro_batch for events in passes.stages for e in events}) * how.copies
    cut = _Cut(program, chunk_of, passes, of_chunks, how, share_of_micro_batch(program.graph, count))
    parts = tuple(cut.chunk(k) for k in range(len(passes.holder)))
    groups = {n: tuple(tuple(g) for g in found) for n, found in sums.items()}
    defects = tuple(dict.fromkeys(cut.defects))
    return Staged(program, chunk_of, parts, passes, count, groups, defects, how.copies, cut.weights)


class _Cut:
    """`share`: of a micro-batch in the gradient of a step."""

    def __init__(
        self,
        program: Program,
        chunk_of: Mapping[str, int],
        passes: Passes,
        held: Mapping[str, frozenset[int]],
        how: RunAs,
        share: float,
    ) -> None:
        self.program, self.graph, self.chunk_of = program, program.graph, chunk_of
        self.passes, self.count, self.held, self.how, self.share = passes, len(passes.holder), held, how, share
        self.weights = made_of_parameters(self.graph)
        self.defects: list[str] = []
        turn = _turn(program)
        self.forward = [self._of_chunk(k, program.instructions[:turn]) for k in range(self.count)]
        self.backward = [self._of_chunk(k, program.instructions[turn:]) for k in range(self.count)]
        self.values = self._value_transfers()
        self.gradients = self._gradient_transfers()

    def chunk(self, chunk: int) -> ChunkProgram:
        sent = {t.key for t in self.values if t.source == chunk}
        forward: Listed = [i for i in self.forward[chunk] if not self._once(i)]
        backward, end = self._gradients(chunk)
        backward = again(self.program, self.how, forward, backward)
        late = Listed()
        if self.passes.split:
            crossing = {t.tensor for t in self.gradients}
            backward, late = in_two(self.program, backward, self.weights - crossing, self._may_wait)
        begin = self._begin(chunk)
        if self.how.gathers:
            making = {k: i for i in (*begin, *forward, *backward) if self._makes(i) for k in writes(self.program, i)}
            begin = [i for i in begin if not self._makes(i)]
            outputs = [k for k, i in making.items() if isinstance(i, Run) and k[0] in self.graph.outputs]
            forward, backward, late = (
                by_units(self.program, making, self.how.unit, (i for i in listed if not self._makes(i)), *ends)
                for listed, *ends in ((forward, sent, outputs), (backward, ()), (late, ()))
            )
        forward += freed(self.program, forward, [*backward, *late], [*sent, *self._weight_keys(forward)])
        forward, (backward, late) = hosted(self.program, self.how.hosted, forward, (backward, late), sent)
        runs: dict[Phase, Listed] = {"begin": begin, "forward": forward, "backward": backward, "end": end}
        if self.passes.split:
            runs["weights"] = late
        return ChunkProgram(
            {phase: tuple(listed) for phase, listed in runs.items()},
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

    def _begin(self, chunk: int) -> Listed:
        """Parameters as they are stored, and as they are read."""
        passing = (*self.forward[chunk], *self.backward[chunk])
        return list(dict.fromkeys(i for i in passing if self._once(i) and not of_gradient(i)))

    def _gradients(self, chunk: int) -> tuple[Listed, Listed]:
        """The backward pass, and what is left of gradients of parameters for the end of the step."""
        received = {t.tensor for t in self.gradients if t.target == chunk}
        there = {t.key for t in self.gradients if t.target == chunk}
        scattered = {i: deferred(i) for i in self.backward[chunk] if self._once(i) and of_gradient(i)}
        passing = Listed()
        for i in self.backward[chunk]:
            if isinstance(i, Seed):
                passing.append(replace(i, weight=self.share))
            elif not self._once(i):
                passing.append(i)
            elif self.how.scatters and i in scattered and (now := scattered[i][0]) is not None:
                passing.append(now)
        own = [op for op in self.graph.ops if self.chunk_of[op.name] == chunk]
        made = {k for op in own for k in self._contributed(op)}
        if self.how.scatters:
            received |= self.held.keys()
            made |= {(now.tensor, now.target) for now, _ in scattered.values() if now is not None}
        end = [then if self.how.scatters else i for i, (_, then) in scattered.items()]
        return (
            list(self._feasible(passing, there, received)),
            list(self._feasible([i for i in dict.fromkeys(end) if i is not None], made, None)),
        )

    def _may_wait(self, op: str) -> bool:
        """The gradient of its weight is computed apart from that of what it reads."""
        kind, inside = self.program.rules[op].cost.kind, any(c.backward for c in self.program.strategies[op].inner)
        return (kind.product or kind is Kind.GATHER) and not inside

    def _makes(self, i: StageInstruction) -> bool:
        """Whether it makes a value of parameters alone, of what there is between steps."""
        if isinstance(i, Redistribute):
            return not i.gradient and i.tensor in self.weights
        return isinstance(i, Run) and not i.backward and self._of_weights(i.op)

    def _of_weights(self, op: str) -> bool:
        return all(t in self.weights for t in self.graph.op(op).outputs if t)

    def _weight_keys(self, forward: Listed) -> list[Key]:
        """Values of parameters alone, which are let go unit by unit where they are at all."""
        return [k for i in forward for k in writes(self.program, i) if k[0] in self.weights and self.how.gathers]

    def _of_chunk(self, chunk: int, instructions: Iterable[Instruction]) -> list[Instruction]:
        return [i for i in instructions if chunk in self._chunks(i)]

    def _chunks(self, i: Instruction) -> frozenset[int]:
        if isinstance(i, Run):
            return frozenset([self.chunk_of[i.op]])
        made = self.graph.producers.get(i.tensor)
        if made is not None:
            return frozenset([self.chunk_of[made.name]])
        only = i.reader if isinstance(i, Redistribute) else ""
        readers = self.graph.consumers.get(i.tensor, ())
        reading = frozenset(self.chunk_of[op.name] for op, _ in readers if not only or op.name == only)
        return reading & self.held[i.tensor] if i.tensor in self.held else reading

    def _once(self, i: Instruction) -> bool:
        """Whether it happens once a step: parameters are loaded and redistributed, their gradients redistributed."""
        return not isinstance(i, Run) and self.graph.tensors[i.tensor].role is Role.PARAMETER

    # What crosses

    def _value_transfers(self) -> tuple[StageTransfer, ...]:
        made: dict[Key, int] = {}
        for k in range(self.count):
            for i in self.forward[k]:
                made.update({key: k for key in writes(self.program, i) if key[0] in self.graph.producers})
        last: dict[Key, int] = {}
        for k in range(self.count):
            here: set[Key] = set()
            for i in (*self.forward[k], *self.backward[k]):
                for key in self._reads(i):
                    if key in here:
                        continue
                    here.add(key)
                    if made.get(key, self.count) < k:
                        last[key] = k
                    else:
                        self.defects.append(self._missing(i, key, k, made.get(key)))
                here.update(writes(self.program, i))
        order = {key: n for n, key in enumerate(made)}
        return tuple(
            StageTransfer(*key, False, k, k + 1)
            for key in sorted(last, key=order.__getitem__)
            for k in range(made[key], last[key])
        )

    def _missing(self, i: Instruction, key: Key, chunk: int, made: int | None) -> str:
        name, layout = key
        op = self.graph.op(i.op) if isinstance(i, Run) else None
        who = f"{op.type} {op.name}" if op is not None else f"a redistribution of {name}"
        here, holder = self.passes.name(chunk), self.passes.holder
        if name in self.held:
            holds = ", ".join(map(str, sorted({holder[k] for k in self.held[name]}))) or "none"
            return f"{here}: {who} reads {name} as {layout}; the stages that hold the parameter are {holds}"
        where = "no stage makes" if made is None else f"{self.passes.name(made)} makes and never sends to {here}"
        return f"{here}: {who} reads {name} as {layout}, which {where}"

    def _gradient_transfers(self) -> tuple[StageTransfer, ...]:
        """Contributions go back to where the tensor is made, chunk by chunk, in the layouts they are made in."""
        first: dict[Key, int] = {}
        for op in self.graph.ops:
            for key in self._contributed(op):
                if key[0] in self.graph.producers:
                    first[key] = max(first.get(key, 0), self.chunk_of[op.name])
        return tuple(
            StageTransfer(*key, True, k, k - 1)
            for key, latest in first.items()
            for k in range(latest, self.chunk_of[self.graph.producers[key[0]].name], -1)
        )

    def _contributed(self, op: Op) -> list[Key]:
        """Gradients that the operator's backward pass adds to."""
        active, rule = self.program.active, self.program.rules[op.name]
        if not any(t in active for t in op.outputs):
            return []
        layouts = self.program.strategies[op.name].operand_gradients
        return [
            key_of(self.program, n, layouts[slot])
            for slot, n in enumerate(op.inputs)
            if n in active and slot in rule.differentiable and slot < len(layouts)
        ]

    def _feasible(self, instructions: Listed, there: set[Key], received: set[str] | None) -> Iterable[StageInstruction]:
        """Redistributions of gradients of which there are contributions.  Contributions that several readers of other
        micro-batches or stages make in one layout meet before the first redistribution takes them, which leaves the
        others nothing; and a stage lacks those that readers in other stages make.  `there`: contributions that are
        there before; `received`: tensors of which there may be none, None: any."""
        there = set(there)
        for i in instructions:
            if isinstance(i, Redistribute) and i.gradient:
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

    def _reads(self, i: Instruction) -> list[Key]:
        if isinstance(i, Redistribute):
            return [] if i.gradient else [(i.tensor, i.source)]
        if not isinstance(i, Run) or i.backward:  # what the backward pass reads, the forward pass has read or made
            return []
        op, strategy = self.graph.op(i.op), self.program.strategies[i.op]
        shape = self.program.rules[i.op].shape_operand
        pairs = enumerate(zip(op.inputs, strategy.operands, strict=True))
        return [key_of(self.program, n, x) for slot, (n, x) in pairs if n and slot != shape]


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
    """The passes of a schedule that `planner.cost_models.pipeline` knows, of so many `chunks` in each stage, between
    what happens once a step.  Without training there are no backward passes."""
    phases: tuple[Phase, ...] = ("forward", "backward", "weights") if training else ("forward",)
    out = []
    for stage, own in enumerate(stage_numbers(order, stages, chunks).tolist()):
        codes = device_order(order, stages, chunks, micro_batches, stage)
        run = [
            Event(phases[code // chunks], number, own[code % chunks])
            for code, number in zip(codes.tolist(), occurrences(codes, micro_batches).tolist(), strict=True)
            if code // chunks < len(phases)
        ]
        out.append((*(Event("begin", chunk=k) for k in own), *run, *(Event("end", chunk=k) for k in own)))
    return Passes(tuple(out), holders_of_chunks(order, stages, chunks), training and is_split(order))
