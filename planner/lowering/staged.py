"""A program cut into pipeline stages: what each stage runs, once a step and for every micro-batch, and what is sent.

- A stage runs its operators.  What is made from a tensor (redistributions, forward and of its gradient) runs where the
  tensor is made.  Parameters, inputs and constants lie in every stage that reads them.
- A value that later stages read goes from stage to stage, in the layouts in which these read it; contributions to its
  gradient come back the same way, in the layouts in which they are made, added up on the way.
- Parameters are brought to the layouts in which they are read at the beginning of a step.  Their gradients are added up
  over the micro-batches as they are computed, and brought to where they are stored behind the last one.
- Then the gradients of parameters that several stages hold are summed between these stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from cost_models.pipeline.orders import device_order, occurrences
from planner.ir import Layout, Op, Role
from planner.lowering.program import Convert, Instruction, Load, Program, Run, Seed

__all__ = ["Event", "Phase", "StageProgram", "Staged", "Transfer", "passes", "staged"]

_Key = tuple[str, Layout]
Phase = Literal["begin", "forward", "backward", "end"]


@dataclass(frozen=True, slots=True)
class Transfer:
    """Every rank of stage `source` sends its shard of a tensor, or of its gradient, to the rank at the same place of
    stage `target`."""

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
    """A part of a step that a stage runs without waiting: `begin` and `end` once, the others for a micro-batch."""

    phase: Phase
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class StageProgram:
    """What one stage runs.  Of a pass it first receives, by phase, and last sends.  `held`: its parameters."""

    runs: Mapping[Phase, tuple[Instruction, ...]]
    receives: Mapping[Phase, tuple[Transfer, ...]]
    sends: Mapping[Phase, tuple[Transfer, ...]]
    events: tuple[Event, ...]
    held: frozenset[str]

    def received(self, phase: Phase) -> tuple[Transfer, ...]:
        return self.receives.get(phase, ())

    def sent(self, phase: Phase) -> tuple[Transfer, ...]:
        return self.sends.get(phase, ())

    def instructions(self, phase: Phase) -> tuple[Instruction, ...]:
        return self.runs[phase]


@dataclass(frozen=True, eq=False)
class Staged:
    """`program` is that of a micro-batch in one stage.  `sums`: parameter → groups of ranks, which count stage by
    stage, that sum its gradient.  `defects`: what a stage reads and cannot have."""

    program: Program
    stage_of: Mapping[str, int]
    stages: tuple[StageProgram, ...]
    micro_batches: int
    sums: Mapping[str, tuple[tuple[int, ...], ...]]
    defects: tuple[str, ...]

    @property
    def devices(self) -> int:
        return len(self.stages) * self.program.mesh.devices


def staged(
    program: Program,
    stage_of: Mapping[str, int],
    orders: Iterable[Iterable[Event]],
    held: Mapping[str, Iterable[int]],
    sums: Mapping[str, Iterable[Iterable[int]]],
) -> Staged:
    """`stage_of`: operator → stage; `orders`: the passes of each stage in order; `held`: parameter → the stages that
    hold it; `sums`: as of `Staged`."""
    events = [tuple(o) for o in orders]
    cut = _Cut(program, stage_of, len(events), {n: frozenset(s) for n, s in held.items()})
    parts = tuple(cut.stage(s, passes) for s, passes in enumerate(events))
    count = len({e.micro_batch for passes in events for e in passes})
    groups = {n: tuple(tuple(g) for g in found) for n, found in sums.items()}
    return Staged(program, stage_of, parts, count, groups, tuple(dict.fromkeys(cut.defects)))


class _Cut:
    def __init__(
        self, program: Program, stage_of: Mapping[str, int], stages: int, held: Mapping[str, frozenset[int]]
    ) -> None:
        self.program, self.graph, self.stage_of, self.count = program, program.graph, stage_of, stages
        self.held = held
        self.defects: list[str] = []
        turn = _turn(program)
        self.forward = [self._of_stage(s, program.instructions[:turn]) for s in range(stages)]
        self.backward = [self._of_stage(s, program.instructions[turn:]) for s in range(stages)]
        self.values = self._value_transfers()
        self.gradients = self._gradient_transfers()

    def stage(self, stage: int, passes: tuple[Event, ...]) -> StageProgram:
        begin: dict[Instruction, None] = {}
        for i in (*self.forward[stage], *self.backward[stage]):
            if self._once(i) and not _of_gradient(i):
                begin[i] = None
        received = {t.tensor for t in self.gradients if t.target == stage}
        backward = [i for i in self.backward[stage] if not self._once(i)]
        end = [i for i in self.backward[stage] if self._once(i) and _of_gradient(i)]
        return StageProgram(
            {
                "begin": tuple(begin),
                "forward": tuple(i for i in self.forward[stage] if not self._once(i)),
                "backward": tuple(self._feasible(backward, stage, received)),
                "end": tuple(self._feasible(end, stage, None)),
            },
            {
                "forward": tuple(t for t in self.values if t.target == stage),
                "backward": tuple(t for t in self.gradients if t.target == stage),
            },
            {
                "forward": tuple(t for t in self.values if t.source == stage),
                "backward": tuple(t for t in self.gradients if t.source == stage),
            },
            passes,
            frozenset(n for n, stages in self.held.items() if stage in stages),
        )

    def _of_stage(self, stage: int, instructions: Iterable[Instruction]) -> list[Instruction]:
        return [i for i in instructions if stage in self._stages(i)]

    def _stages(self, i: Instruction) -> frozenset[int]:
        if isinstance(i, Run):
            return frozenset([self.stage_of[i.op]])
        made = self.graph.producers.get(i.tensor)
        if made is not None:
            return frozenset([self.stage_of[made.name]])
        only = i.reader if isinstance(i, Convert) else ""
        readers = self.graph.consumers.get(i.tensor, ())
        reading = frozenset(self.stage_of[op.name] for op, _ in readers if not only or op.name == only)
        return reading & self.held[i.tensor] if i.tensor in self.held else reading

    def _once(self, i: Instruction) -> bool:
        """Whether it happens once a step: parameters are loaded and redistributed, their gradients redistributed."""
        return not isinstance(i, Run) and self.graph.tensors[i.tensor].role is Role.PARAMETER

    # What crosses

    def _value_transfers(self) -> tuple[Transfer, ...]:
        made: dict[_Key, int] = {}
        for s in range(self.count):
            for i in self.forward[s]:
                made.update({k: s for k in self._writes(i) if k[0] in self.graph.producers})
        last: dict[_Key, int] = {}
        for s in range(self.count):
            here: set[_Key] = set()
            for i in (*self.forward[s], *self.backward[s]):
                for key in self._reads(i):
                    if key in here:
                        continue
                    here.add(key)
                    if made.get(key, self.count) < s:
                        last[key] = s
                    else:
                        self.defects.append(self._missing(i, key, s, made.get(key)))
                here.update(self._writes(i))
        order = {key: n for n, key in enumerate(made)}
        return tuple(
            Transfer(*key, False, s, s + 1)
            for key in sorted(last, key=order.__getitem__)
            for s in range(made[key], last[key])
        )

    def _missing(self, i: Instruction, key: _Key, stage: int, made: int | None) -> str:
        name, layout = key
        op = self.graph.op(i.op) if isinstance(i, Run) else None
        who = f"{op.type} {op.name}" if op is not None else f"a redistribution of {name}"
        if name in self.held:
            holds = ", ".join(map(str, sorted(self.held[name]))) or "none"
            return f"stage {stage}: {who} reads {name} as {layout}; the stages that hold the parameter are {holds}"
        where = "no stage makes" if made is None else f"stage {made} makes and never sends to stage {stage}"
        return f"stage {stage}: {who} reads {name} as {layout}, which {where}"

    def _gradient_transfers(self) -> tuple[Transfer, ...]:
        """Contributions go back to where the tensor is made, stage by stage, in the layouts they are made in."""
        first: dict[_Key, int] = {}
        for op in self.graph.ops:
            for key in self._contributed(op):
                if key[0] in self.graph.producers:
                    first[key] = max(first.get(key, 0), self.stage_of[op.name])
        return tuple(
            Transfer(*key, True, s, s - 1)
            for key, latest in first.items()
            for s in range(latest, self.stage_of[self.graph.producers[key[0]].name], -1)
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
        self, instructions: list[Instruction], stage: int, received: set[str] | None
    ) -> Iterable[Instruction]:
        """Redistributions of gradients of which there are contributions.  Contributions that several readers of other
        micro-batches or stages make in one layout meet before the first redistribution takes them, which leaves the
        others nothing; and a stage lacks those that readers in other stages make."""
        there: set[_Key] = set()
        if received is None:
            own = [op for op in self.graph.ops if self.stage_of[op.name] == stage]
            there.update(k for op in own for k in self._contributed(op))
        else:
            there.update((t.tensor, t.layout) for t in self.gradients if t.target == stage)
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


def passes(order: str, stages: int, micro_batches: int, *, training: bool) -> list[list[Event]]:
    """What each stage runs, in order: the passes of a schedule that `cost_models.pipeline` knows, between what happens
    once a step.  Without training there are no backward passes."""
    phases: tuple[Phase, ...] = ("forward", "backward")
    out = []
    for stage in range(stages):
        codes = device_order(order, stages, 1, micro_batches, stage)
        numbers = occurrences(codes, micro_batches)
        run = [Event(phases[c], int(m)) for c, m in zip(codes, numbers, strict=True) if training or not c]
        out.append([Event("begin"), *run, Event("end")])
    return out
