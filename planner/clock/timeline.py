"""One step of a program that a search has found: how long it takes, and when everything begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypedDict
from weakref import WeakKeyDictionary

from planner.clock.configuration import Configuration
from planner.clock.costs import redistribution_cost, run_cost
from planner.clock.memory import Held, chunk_activation_bytes, held_as_made, held_bytes
from planner.clock.passes import Part
from planner.clock.stages import in_one_chunk
from planner.clock.step import StepTimes, step_of
from planner.lowering import Program, Redistribute, Run
from planner.pricing import PricedProblem, Settings
from planner.redistribute.steps import FREE
from planner.trace import Levels, Workload, trace, trace_levels
from planner.work.units import units_of

__all__ = ["Timeline", "held_of_plan", "levels_of_plan", "play", "usual", "workload_of_plan"]


_Pass = tuple[bool, int]  # (backward, unit)


class _Way(TypedDict):
    chains: bool
    attention: bool
    copies: bool
    gathered_again: bool


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every instruction begins, and what the step takes, in units of the profile's price resolution.

    `end` is the whole step, of which operators take `compute`.  Behind the last instruction parameters are updated for
    `optimizer` units and `overhead` passes; `host` is what computing waits for the host that starts kernels, `exposed`
    for collectives that are not hidden, what they slow it down included.
    """

    all_begins: Callable[[], tuple[int, ...]]
    compute: int
    optimizer: int
    host: int
    overhead: int
    exposed: int

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """Of the instructions in their order; found when it is asked for, which is of the plan that is written."""
        return self.all_begins()

    @property
    def end(self) -> int:
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """Units of the step by cause; they add up to it."""
        return {
            "compute": self.compute,
            "collectives": self.exposed,
            "host": self.host,
            "optimizer": self.optimizer,
            "outside": self.overhead,
        }


def usual(program: Program, settings: Settings) -> Configuration:
    """How a program runs of which nothing else is said.

    Training: weights that are stored in more shards than they are read in are gathered once a step, beside the forward
    pass, and sums of gradients run beside the backward pass, in the width of activations.  Inference: weights are
    gathered ahead of every unit.
    """
    trained = settings.training
    stored = any(
        c.tensor not in program.graph.producers and not c.gradient and any(s.kind not in FREE for s in c.steps)
        for c in program.redistributions()
    )
    runs = [i.op for i in program.instructions if isinstance(i, Run) and not i.backward]
    return Configuration(
        zero=(1 if trained else 3) if stored else 0,
        recompute="full" if len(set(runs)) < len(runs) else "none",
        precision=settings.precision,
        gradient_bytes=4 if settings.precision == "fp32" else 2,
        attention="native",
        frozen=not trained,
        overlap_gradients=True,
        overlap_parameters=True,
        overlap_pipeline=True,
        optimizer=settings.optimizer,
    )


_KNOWN: WeakKeyDictionary[Program, tuple[_Way, Workload]] = WeakKeyDictionary()


def workload_of_plan(
    priced: PricedProblem,
    program: Program,
    execution: Configuration | None = None,
    stage_of: Mapping[str, int] | None = None,
) -> Workload:
    """What a rank of the program does, by the kernels that its prices are of; `execution`: of the known configuration
    that the program was made of; `stage_of`: stages of operators, at whose ends units end.  Kept with the program."""
    known, way = _KNOWN.get(program), _way(priced, execution)
    if stage_of is None and known is not None and known[0] == way:
        return known[1]
    made = trace(program, priced.machine.settings, **way, stage_of=stage_of)
    if stage_of is None:
        _KNOWN[program] = way, made
    return made


def levels_of_plan(priced: PricedProblem, program: Program) -> Levels:
    """What a device holds for activations at every instruction, where the program runs as it usually does."""
    return trace_levels(program, priced.machine.settings, **_way(priced, None))


def _way(priced: PricedProblem, execution: Configuration | None) -> _Way:
    """Which operators run as one kernel, and what is gathered again, as `trace` wants to know it."""
    joined = priced.machine.profile.framework.joins_kernels
    if execution is not None:
        fused = joined and execution.attention != "unfused"
        return _Way(chains=joined and execution.fuse, attention=fused, copies=not joined, gathered_again=True)
    return _Way(chains=joined, attention=joined, copies=not joined, gathered_again=False)


def held_of_plan(
    priced: PricedProblem, program: Program, execution: Configuration | None = None, *, alone: bool = False
) -> Held:
    """What a device holds at most in a step of the program, or in one micro-batch through all stages, where it runs as
    the known configuration says that it was made of, else as it usually runs.  `alone`: nothing else of the program
    will be wanted."""
    settings = priced.machine.settings
    if alone:
        workload = trace(program, settings, **_way(priced, execution), held_alone=True)
    else:
        workload = workload_of_plan(priced, program, execution)
    run_as = execution or usual(program, settings)
    c, whole = _at_once(workload, run_as), range(len(workload.units))
    if settings.target == "torch" and run_as.micro_batches == run_as.pp == run_as.copies == 1:
        return held_as_made(workload, c)
    return held_bytes(workload, c, (whole,), 0, chunk_activation_bytes(workload, c, whole))


def _at_once(workload: Workload, c: Configuration) -> Configuration:
    return in_one_chunk(workload, c).with_(
        pp=1, virtual_stages=1, micro_batches=1, copies=1, schedule="1f1b", stage_layers=None
    )


def play(
    priced: PricedProblem,
    choice: Sequence[int],
    program: Program,
    execution: Configuration | None = None,
    *,
    overlapped: bool = True,
) -> Timeline:
    """One step of the program, or one micro-batch through all stages: as the known configuration says that it was made
    of, else as it usually runs; `overlapped` as of `step_of`."""
    workload = workload_of_plan(priced, program, execution)
    c = _at_once(workload, execution or usual(program, priced.machine.settings))
    step = step_of(workload, c, priced.machine.profile, (range(len(workload.units)),), overlapped=overlapped)
    unit_s = priced.machine.unit_s

    again = sum((u.again for u in step.passes.units), Part())

    def units(*names: str, again_s: float = 0.0) -> int:
        return round((again_s + sum(step.spent.get(n, 0.0) for n in names)) / unit_s)

    return Timeline(
        lambda: _Begins(priced, choice, program, step).all(),
        compute=units("compute", again_s=again.compute),
        optimizer=units("update"),
        host=units("host", again_s=again.host),
        overhead=units("overhead"),
        exposed=units("tensor_collectives", "gathering", "bubble", "exchange", again_s=again.sent),
    )


class _Begins:
    """Units before each instruction.

    Passes through units follow each other; in each its operators, and redistributions of activations, fill the time
    that it takes.  Weights are gathered from the pass before on, gradients summed after the pass that makes the last of
    them, one after the other.
    """

    def __init__(self, priced: PricedProblem, choice: Sequence[int], program: Program, step: StepTimes) -> None:
        self.priced, self.choice, self.program = priced, choice, program
        self.of, self.unit_s = units_of(priced.graph).of, priced.machine.unit_s
        self.placed = list(self._places())
        self.filled: dict[_Pass, int] = defaultdict(int)
        for at, cost, shared in self.placed:
            if not shared:
                self.filled[at] += cost
        self.start: dict[_Pass, float] = {}
        self.lasts: dict[_Pass, float] = {}
        begin = 0.0
        for at in sorted(self.filled, key=lambda at: (at[0], -at[1] if at[0] else at[1])):
            unit = step.passes.units[at[1]]
            self.start[at], self.lasts[at] = begin, (unit.back if at[0] else unit.forward.seconds) / self.unit_s
            begin += self.lasts[at]

    def _places(self) -> Iterator[tuple[_Pass, int, bool]]:
        """Of every instruction the pass that it belongs to, its cost, and whether it is a parameter's."""
        backward, here = False, (False, 0)
        for i in self.program.instructions:
            cost, shared = 0, False
            if isinstance(i, Run):
                backward = backward or i.backward
                here = backward, self.of[i.op]
                cost = sum(run_cost(self.priced, self.choice, i)) if i.op in self.priced.op_nodes else 0
            elif isinstance(i, Redistribute):
                cost, shared = redistribution_cost(self.priced, i), i.tensor in self.priced.parameter_nodes
            yield here, cost, shared

    def all(self) -> tuple[int, ...]:
        order = list(self.start)
        before = dict(zip(order, [*order[:1], *order], strict=False))
        used: dict[_Pass, int] = defaultdict(int)
        free = [0, 0]  # when what computes, and what exchanges parameters, is done with what was begun
        out = []
        for i, (at, cost, shared) in zip(self.program.instructions, self.placed, strict=True):
            if not shared:
                share = used[at] / self.filled[at] if self.filled[at] else 0.0
                ready = self.start[at] + share * self.lasts[at]
                used[at] += cost
            elif isinstance(i, Redistribute) and i.gradient:
                ready = self.start.get(at, 0.0) + self.lasts.get(at, 0.0)
            else:
                ready = self.start[before[at]] if at in before else 0.0
            begin = max(int(ready), free[shared])
            free[shared] = begin + cost
            out.append(begin)
        return tuple(out)
