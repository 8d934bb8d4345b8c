"""A training goes on with the processes that are left when others end, on this host, started by this process.

**Where a step becomes one.**  Everything that ranks communicate in a step lies before its update: samples that are
none, parameters that are gathered, activations between stages, sums of gradients, and last of all one sum of the loss
and of the squares of all gradients over all ranks, which the clipping needs.  Behind it every rank updates its own
parts, and says nothing to others; ZeRO's parts are gathered anew when the next step reads them.  So that last sum is
the barrier of the step.  It gives a rank its result only when every rank has put its own number in, which a rank does
when its gradients are complete.  Of a step that was broken off there are two cases:

- Some rank that is left has passed the barrier.  Then the gradients of all are complete, and its result, which is the
  same on all ranks to the bit, is all that the others lack: they make the step with it (`complete`).
- None has.  Then none that is left has changed anything, whatever those did that are gone, and the step is made again
  from the same samples.

A rank updates once for each set of gradients: `RankTraining.complete` takes them away before it begins, and counts the
step when it is done; in between it answers no call, and where it ends in between its state is gone with it.  A step
whose loss or gradients are not finite is made by nobody, and so is made again, to the same end.

**When the new plan counts.**  What ranks have under the plan before stays untouched until all of them have what they
need under the new one: state is moved beside it (so both are held for that time).  This process alone then decides:
behind `Survivors.keep` the new plan is the one that was run, before it the old one is, and whatever ends meanwhile, the
same is done again with the ranks that are left then.  Where a checkpoint brings the state, nothing but it counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import PlannerError, UsageError
from planner.ir import Graph
from planner.planning import PlanDocument
from planner.runtime.survivors import RanksLost, Survivors, lost_text
from planner.runtime.training.calls import Refused, guarded, lay_out, load_from, look
from planner.runtime.training.moved import Standing, complete, let_go, receive, relay, stand, take
from planner.runtime.training.options import Numbers, TrainingOptions
from planner.runtime.training.rank import StepOutcome, graph_of_plan
from planner.runtime.workers import WorkerError
from planner.transfer.schedule import Schedule

__all__ = ["Job", "Recovered", "Recovery", "Replanned", "Surviving"]

_NAMED = 5  # of tensors in a message


@dataclass(frozen=True, slots=True)
class Replanned:
    """A plan for devices that are left, and the sends that bring its state about, over the devices of the plan
    before."""

    plan: PlanDocument
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class Surviving:
    """That a training is to go on as long as `least` devices are left.

    replan  of the plan that was run, its ranks that are gone and the slots of the optimizer: the new plan
    tell    gets what has happened, each time
    """

    least: int
    replan: Callable[[PlanDocument, Collection[int], tuple[str, ...]], Replanned]
    tell: Callable[[Recovered], None]


@dataclass(frozen=True, slots=True)
class Recovered:
    """`ranks` of the plan before, which had `before`, have ended, as is `said`; `step`: the last one that is made now.

    `planning_s` of all `seconds` went into the new plan, for `devices` devices; `left` are as many as there were for
    it.  `moved_bytes` between devices; or `checkpoint`, for want of `lost`, of which no device had all.
    """

    ranks: tuple[int, ...]
    said: str
    before: int
    left: int
    devices: int
    step: int
    planning_s: float
    seconds: float
    moved_bytes: int
    lost: tuple[str, ...] = ()
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What stays the same of a training under any plan."""

    model: Path
    options: TrainingOptions
    numbers: Numbers
    seed: int
    as_planned: bool
    step_samples: int


class Recovery:
    """Has the ranks of a training that are left go on, each time that some have ended."""

    def __init__(self, workers: Survivors, surviving: Surviving, job: Job, plan: PlanDocument) -> None:
        self.workers, self.surviving, self.job, self.plan = workers, surviving, job, plan

    def __call__(self, checkpoint: Callable[[], tuple[Path, int] | None]) -> tuple[int, StepOutcome | None]:
        """(the last step that is made now, its outcome where a rank knows it); `plan` is the new plan then.
        `checkpoint`: the newest one of this training, and its step.

        WorkerError where too few devices are left, no plan is found for them, or what is lost is in no checkpoint.
        """
        begin = time.perf_counter()
        numbers, ended = list(self.workers.numbers), dict[int, str]()
        attempt = _Attempt(self, checkpoint)
        while True:
            ended |= {self.workers.numbers[r]: how for r, how in self.workers.lost.items()}
            try:
                found = attempt()
                break
            except RanksLost:
                continue
        ranks = tuple(sorted(numbers.index(n) for n in ended))
        said = lost_text({r: ended[numbers[r]] for r in ranks}, len(numbers))
        done = Recovered(
            ranks, said, len(numbers), len(numbers) - len(ranks), self.plan.devices, found.step,
            attempt.planning_s, time.perf_counter() - begin, found.moved_bytes, attempt.lost, found.checkpoint,
        )  # fmt: skip
        self.surviving.tell(done)
        return found.step, found.outcome


@dataclass(frozen=True, slots=True)
class _Found:
    step: int
    outcome: StepOutcome | None
    moved_bytes: int = 0
    checkpoint: Path | None = None


class _Attempt:
    """Called until it does not raise `RanksLost`; `reload`: whether a checkpoint brings the state, for some is lost."""

    def __init__(self, recovery: Recovery, checkpoint: Callable[[], tuple[Path, int] | None]) -> None:
        self.recovery, self.checkpoint = recovery, checkpoint
        self.workers, self.job = recovery.workers, recovery.job
        self.reload = False
        self.lost: tuple[str, ...] = ()
        self.planning_s = 0.0
        self.step = 0
        self.outcome: StepOutcome | None = None

    def __call__(self) -> _Found:
        workers, least = self.workers, self.recovery.surviving.least
        if len(workers.alive) < least:
            left = _devices(len(workers.alive))
            raise WorkerError(f"{workers.said()}; {left} left, and --min-devices asks for {least}")
        kinds: dict[str, tuple[str, int]] = {}
        if not self.reload:
            standing = self._evened()
            kinds = dict(standing.kinds)
            self.step, self.outcome = standing.step, standing.made
        found = self._replanned()
        if not self.reload:
            schedule = found.schedule.chosen(kinds)
            if not schedule.lost:
                return self._moved(found, schedule)
            self.lost = tuple(schedule.lost)
        return self._reloaded(found)

    def _evened(self) -> Standing:
        """Has all ranks stand behind the same step; where they stand then."""
        found: dict[int, Standing] = self.workers.each(stand, dict.fromkeys(self.workers.alive, ()))
        ahead = max(found.values(), key=lambda s: s.step)
        behind = [r for r, s in found.items() if s.step < ahead.step]
        wrong = [r for r in behind if found[r].step < ahead.step - 1 or not found[r].pending]
        if wrong:
            raise WorkerError(
                f"{self.workers.said()}; rank {wrong[0]} has made {found[wrong[0]].step} steps and others {ahead.step},"
                " without the gradients of the next; go on from a checkpoint with --load"
            )
        if behind:
            self.workers.each(complete, dict.fromkeys(behind, (ahead.made,)))
        return ahead

    def _replanned(self) -> Replanned:
        begin = time.perf_counter()
        workers, surviving = self.workers, self.recovery.surviving
        try:
            found = surviving.replan(self.recovery.plan, sorted(workers.lost), self.job.numbers.slots)
        except PlannerError as error:
            raise WorkerError(
                f"{workers.said()}; no plan for what is left, {_devices(len(workers.alive))}: {error}"
            ) from None
        self.planning_s += time.perf_counter() - begin
        if found.plan.devices < surviving.least:
            raise WorkerError(
                f"{workers.said()}; of {_devices(len(workers.alive))} left a plan uses {found.plan.devices}, and "
                f"--min-devices asks for {surviving.least}"
            )
        return found

    def _moved(self, found: Replanned, schedule: Schedule) -> _Found:
        """The state goes from device to device."""
        workers, job = self.workers, self.job
        order = schedule.placement.tolist()
        everyone = [*order, *(r for r in workers.alive if r not in order)]
        workers.meet(everyone)
        sent = workers.each(receive, dict.fromkeys(everyone, (schedule.among(everyone),)))
        if len(everyone) > len(order):
            workers.meet(order)
        given = job.model, _text(found.plan), job.options, job.seed, self._graph(found.plan), job.as_planned
        laid = _heeded(workers.each(guarded, dict.fromkeys(order, (relay, *given))))
        self._check(laid[0])
        self._keep(order, found.plan)
        with suppress(RanksLost):  # the others have taken it, and the next call finds the same
            workers.call(take)
        return _Found(self.step, self.outcome, sum(sent.values()))

    def _reloaded(self, found: Replanned) -> _Found:
        """The state comes from the newest checkpoint."""
        workers, job = self.workers, self.job
        newest = self.checkpoint()
        if newest is None:
            names = list(self.lost)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise WorkerError(
                f"{workers.said()}; no device that is left holds all of {', '.join(names[:_NAMED])}{more}, and there"
                " is no checkpoint of this training; write some with --save FOLDER --save-every K"
            )
        self.reload = True
        place, step = newest
        order = found.schedule.placement.tolist()
        workers.meet(order)
        self._keep(order, found.plan)
        workers.call(let_go)
        text = _text(found.plan)
        graph = self._graph(found.plan)
        prepared = _heeded(workers.call(guarded, look, job.model, text, job.options, job.seed, graph))
        self._check(prepared[0].step_samples)
        workers.call(lay_out, text, job.numbers, job.seed, job.as_planned)
        _heeded(workers.call(guarded, load_from, place))
        return _Found(step, None, checkpoint=place)

    def _graph(self, plan: PlanDocument) -> Graph:
        """Read here for all: a model is read by a process of its own, which is forked, and ranks have left process
        groups behind that do not live on in another process."""
        return graph_of_plan(self.job.model, plan)

    def _check(self, samples: int) -> None:
        if samples != self.job.step_samples:
            raise UsageError(
                f"{self.workers.said()}; the plan for what is left takes {samples} samples in a step, and the one"
                f" before took {self.job.step_samples}; go on from a checkpoint with a plan for the same batch (--load)"
            )

    def _keep(self, order: list[int], plan: PlanDocument) -> None:
        self.workers.keep(order)
        self.recovery.plan = plan


def _text(plan: PlanDocument) -> str:
    return plan.model_dump_json(by_alias=True)


def _devices(count: int) -> str:
    return f"{count} device{'' if count == 1 else 's'}"


def _heeded(found: Mapping[int, Any] | list[Any]) -> list[Any]:
    """What ranks returned, if none of them has refused."""
    listed = list(found.values()) if isinstance(found, Mapping) else found
    for one in listed:
        if isinstance(one, Refused):
            raise one.error
    return listed
