"""The loop of a training, on the process that reports: it has the ranks prepare, step, save and load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from planner.errors import NotFiniteError, PlannerError, UsageError, VerificationError
from planner.planning import PlanDocument
from planner.runtime.ready import ready, workers_for
from planner.runtime.session import Traffic
from planner.runtime.started import Elsewhere, Ranks, Started, started
from planner.runtime.survivors import RanksLost, Survivors
from planner.runtime.timed import Timed
from planner.runtime.training import calls
from planner.runtime.training.checkpoint import clear, place_of, stamp_of
from planner.runtime.training.finite import foremost
from planner.runtime.training.options import Numbers, TrainingOptions
from planner.runtime.training.rank import NotFinite, StepOutcome
from planner.runtime.training.recovery import Job, Recovery, Surviving
from planner.runtime.tried import Tried, fastest
from planner.runtime.workers import Workers

__all__ = ["Agreed", "Step", "Trained", "Watched", "train", "train_on"]


@dataclass(frozen=True, slots=True)
class Step:
    """What one step is reported with; `saved`: where its checkpoint lies."""

    step: int
    loss: float
    gradient_norm: float
    seconds: float
    samples_per_second: float
    saved: Path | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What `planner.report.profiled` makes a profile of: watched steps of every rank, the seconds of a usual one, and
    the bytes that live on the fullest rank."""

    ranks: tuple[list[list[Timed]], ...]
    step_s: float
    held_bytes: int


@dataclass(frozen=True, slots=True)
class Trained:
    """Of a training, on the rank that reports.  `steps`: none where it was resumed and had made all of them; `weights`:
    where they came from; `begun`: the steps made before; `plan`: the one that ran at last;
    `watched`: where a profile was asked for; `tried`: of several plans that were tried, what was found of each;
    `chosen`: the number of the one that was trained then."""

    steps: tuple[Step, ...]
    traffic: Traffic
    fallbacks: frozenset[str]
    weights: str
    numbers: Numbers
    begun: int
    plan: PlanDocument
    watched: Watched | None = None
    chosen: int = 0
    tried: tuple[Tried, ...] = ()


def train(
    model: Path, plan: PlanDocument, options: TrainingOptions, *, device: str = "cpu", threads: int = 1,
    as_planned: bool = False, say: Callable[[str], None] | None = None, tell: Callable[[Step], None] | None = None,
    others: Sequence[PlanDocument] = (), tried: Callable[[int, Tried], None] | None = None,
    surviving: Surviving | None = None,
) -> Trained | None:  # fmt: skip
    """Trains the model as the plan says; None on ranks that do not report.  `tell` gets each step when it is made,
    `say` what is to be known beside.  Where there are `others`, all plans are tried first and the fastest is trained;
    `tried` gets what was found of each, with its number.  `surviving`: what is to be done when processes end; without
    it all end.

    Raises:
        InputError: the plan is not for this model; weights, data or a checkpoint do not fit it.
        UsageError: the plan or the options are none to train with; the number of processes is not the plan's.
        NotFiniteError: a loss or gradients are not finite: nothing was changed by that step.
        VerificationError: ranks disagree, or communicate something else than planned.
        WorkerError: a rank has ended.
        Elsewhere: something of all that, which another rank reports.
    """
    if plan.schedule.mode != "training":
        raise UsageError("the plan is for inference, and has no backward pass; search one without --inference")
    if surviving is not None:
        _check_surviving(surviving, started(), plan, device)
    here = ready(model, plan, device, say)
    speaks = here is None or here.reports
    with (
        workers_for(here, plan.devices, device, threads) if surviving is None
        else Survivors(plan.devices, device=device, threads=threads)
    ) as workers:  # fmt: skip
        chosen, rows = 0, tuple[Tried, ...]()
        if others:
            chosen, rows = fastest(
                workers, model, [plan, *others], device=device, as_planned=as_planned, tell=tried if speaks else None
            )
            plan = [plan, *others][chosen]
        try:
            found = train_on(workers, model, plan, options, as_planned=as_planned, say=say if speaks else None,
                             tell=tell if speaks else None, surviving=surviving)  # fmt: skip
        except Agreed as error:
            raise (error.error if speaks else Elsewhere(error.error)) from None
    return replace(found, chosen=chosen, tried=rows) if speaks else None


def train_on(
    workers: Workers | Ranks, model: Path, plan: PlanDocument, options: TrainingOptions, *, as_planned: bool = False,
    say: Callable[[str], None] | None = None, tell: Callable[[Step], None] | None = None,
    surviving: Surviving | None = None,
) -> Trained:  # fmt: skip
    """As `train`, on processes that are there (`Survivors`, where some may end); what was trained before on them is let
    go.

    Raises:
        Agreed: what went wrong, which all ranks know.
        WorkerError: a rank has ended.
    """
    try:
        return _Loop(workers, plan, options, say or _silent, surviving)(model, as_planned, tell or _silent)
    except (UsageError, NotFiniteError, VerificationError) as error:
        raise Agreed(error) from None


def _check_surviving(surviving: Surviving, here: Started | None, plan: PlanDocument, device: str) -> None:
    """UsageError where the processes that are left could not go on."""
    least = f"--min-devices {surviving.least}"
    if here is not None:
        error = UsageError(
            f"{least}: {here.by} started the ranks, and ends all of them when one has ended; leave it out, and let "
            "torchrun start them again (--max-restarts, with --save and --resume), or start the command by itself"
        )
        raise error if here.reports else Elsewhere(error)
    if device != "cpu":
        raise UsageError(
            f"{least}: going on was tried with gloo on CPUs alone, not with NCCL; leave it out, or say --device cpu"
        )
    if surviving.least > plan.devices:
        raise UsageError(f"{least}: the plan is for {plan.devices} devices; give at most so many")


class Agreed(Exception):
    """An error that all ranks know."""

    def __init__(self, error: PlannerError) -> None:
        super().__init__(str(error))
        self.error = error


def _silent(_: Any) -> None:
    pass


class _Loop:
    """`at`: the last step that the ranks have made, with its `outcome`; `told`: the last one that was told."""

    def __init__(
        self, workers: Workers | Ranks, plan: PlanDocument, options: TrainingOptions, say: Callable[[str], None],
        surviving: Surviving | None,
    ) -> None:  # fmt: skip
        self.workers, self.plan, self.options, self.say = workers, plan, options, say
        self.surviving = surviving
        self.at = self.told = 0
        self.outcome: StepOutcome | None = None
        self.checkpoint: tuple[Path, int] | None = None  # the newest one of this training, and its step
        self.since_plan = 0  # steps made under this plan
        self._unsaved: tuple[int, int] | None = None  # what was at the place of the last checkpoint before it

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What each rank returned.  The first refusal is raised: of a function in which a rank refuses before it waits
        for others, or all do."""
        found = self.workers.call(calls.guarded, function, *arguments)
        self._heed(found)
        return found

    @staticmethod
    def _heed(found: list[Any]) -> None:
        for one in found:
            if isinstance(one, calls.Refused):
                raise Agreed(one.error)

    def __call__(self, model: Path, as_planned: bool, tell: Callable[[Step], None]) -> Trained:
        o = self.options
        before: dict[str, Any] = {}
        checkpoint = None
        if o.load is not None:
            checkpoint, before = self.call(calls.find, o.load)[0]
        elif o.resume:
            checkpoint, before = self.call(calls.find_newest, o.save)[0]
            o = replace(o, load=checkpoint, weights=o.weights if checkpoint is None else None)
        numbers = o.numbers(self.plan.schedule.optimizer, before)
        seed = int(before.get("seed", 0)) if o.seed is None else o.seed
        if o.data is None and before.get("data"):
            self.say(
                f"{checkpoint} was trained on {before['data']}; without --data the batch is drawn from seed {seed}"
            )
        text = self.plan.model_dump_json(by_alias=True)
        prepared: calls.Prepared = self.call(calls.look, model, text, o, seed)[0]
        self.workers.call(calls.lay_out, text, numbers, seed, as_planned)
        source = prepared.weights
        for note in prepared.notes:
            self.say(note)
        begun = int(before.get("step", 0))
        if checkpoint is not None:
            source, self.checkpoint = f"{checkpoint}", (checkpoint, begun)
            if note := self.call(calls.load_from, checkpoint)[0]:
                self.say(note)
        if o.save is not None:
            self.call(clear, o.save)  # to know it before steps are made
        if o.profile is not None:
            self.call(calls.folder_of_profile, o.profile)
        end = o.steps if o.resume else begun + o.steps
        if begun >= end:
            return Trained((), Traffic({}, {}, {}), frozenset(), source, numbers, begun, self.plan)
        self.at = self.told = begun
        recovery = None
        if self.surviving is not None and isinstance(self.workers, Survivors):
            job = Job(model, o, numbers, seed, as_planned, prepared.step_samples)
            recovery = Recovery(self.workers, self.surviving, job, self.plan)
        made: dict[int, Step] = {}
        while True:
            try:
                while self.told < end:
                    if self.at == self.told:
                        self.outcome = self._step(self.at + 1)
                        self.at += 1
                        self.since_plan += 1
                    assert self.outcome is not None
                    saved = self._saved(last=self.at == end)
                    rate = prepared.step_samples / self.outcome.seconds if self.outcome.seconds else 0.0
                    made[self.at] = Step(
                        self.at, self.outcome.loss, self.outcome.gradient_norm, self.outcome.seconds, rate, saved
                    )
                    self.told = self.at
                    tell(made[self.at])
                traffic, fallbacks = self._traffic()
                watched = self._watched(list(made.values()))
                break
            except RanksLost:
                if recovery is None:
                    raise
                self._recover(recovery)
                made = {number: one for number, one in made.items() if number <= self.told}
        return Trained(tuple(made.values()), traffic, fallbacks, source, numbers, begun, self.plan, watched)

    def _recover(self, recovery: Recovery) -> None:
        """Goes on with the ranks that are left."""
        self._take_note_of_saved()
        before = self.at, self.outcome
        self.at, outcome = recovery(lambda: self.checkpoint)
        self.plan, self.since_plan = recovery.plan, 0
        self.outcome = before[1] if before[0] == self.at else outcome
        if self.outcome is None or self.at < self.told:
            self.told = self.at

    def _traffic(self) -> tuple[Traffic, frozenset[str]]:
        """Of the last step."""
        if not self.since_plan:  # no step was made since devices were lost
            return Traffic({}, {}, {}), frozenset()
        found = self.workers.call(calls.traffic)
        traffic = Traffic.of_all([t for t, _ in found], self.plan.mesh.devices)
        if traffic.executed != traffic.planned:
            raise VerificationError(f"executed {dict(traffic.executed)} but planned {dict(traffic.planned)}")
        return traffic, frozenset[str]().union(*(f for _, f in found))

    def _watched(self, made: list[Step]) -> Watched | None:
        """Of steps behind those that were made, of which the first, that warms up, does not count if there are more."""
        if self.options.profile is None:
            return None
        found = self.call(calls.watched)
        usual = median(s.seconds for s in made[1:] or made)
        return Watched(tuple(listed for listed, _ in found), usual, max(held for _, held in found))

    def _step(self, number: int) -> StepOutcome:
        found = self.workers.call(calls.step)
        self._heed(found)
        bad = {rank: f for rank, f in enumerate(found) if isinstance(f, NotFinite)}
        if bad:
            first = next(iter(bad.values()))
            what = f"the loss is {first.loss}" if first.loss - first.loss != 0 else \
                f"the loss is {first.loss:.6g}, and the norm of the gradients {first.gradient_norm}"  # fmt: skip
            raise NotFiniteError(
                f"step {number}: {what}{foremost({rank: f.suspect for rank, f in bad.items()})}; "
                "the weights are those of the step before; look at the data and at --lr"
            )
        outcomes: list[StepOutcome] = found
        return replace(outcomes[0], seconds=max(f.seconds for f in outcomes))

    def _saved(self, *, last: bool) -> Path | None:
        """Where the checkpoint of the last step lies, if there is to be one."""
        o = self.options
        if o.save is None or not (last or (o.save_every is not None and self.at % o.save_every == 0)):
            return None
        place = place_of(o.save, self.at)
        if self.checkpoint is None or self.checkpoint != (place, self.at):
            self._unsaved = stamp_of(place)
            self.call(clear, o.save)
            self.call(calls.save_to, o.save)
            self.checkpoint = place, self.at
        return place

    def _take_note_of_saved(self) -> None:
        """Of a checkpoint that was put to its place, by a rank that could not say so any more."""
        if self.options.save is not None and self.at > self.told:
            place = place_of(self.options.save, self.at)
            if (stamp := stamp_of(place)) is not None and stamp != self._unsaved:
                self.checkpoint = place, self.at
