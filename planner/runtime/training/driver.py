"""The loop of a training, on the process that reports: it has the ranks prepare, step, save and load.

What goes wrong on a rank alone, and is known before ranks wait for each other, comes back as a `_Refused`: all ranks
then end the same way, and one reports.
"""

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
from planner.runtime.started import Elsewhere, Ranks
from planner.runtime.timed import Timed
from planner.runtime.training.checkpoint import chosen, clear, load, newest, place_of, record_of, save
from planner.runtime.training.data import batch_rows, open_data
from planner.runtime.training.finite import foremost
from planner.runtime.training.options import Numbers, TrainingOptions
from planner.runtime.training.rank import NotFinite, RankTraining, StepOutcome, graph_of_plan
from planner.runtime.training.weights import weights_of
from planner.runtime.tried import Tried, fastest
from planner.runtime.workers import Context, Workers

__all__ = ["Agreed", "Step", "Trained", "Watched", "train", "train_on"]

_KEY, _OPENED = "training", "training: opened"
_WATCHED = 3  # steps of a profile


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
    where they came from; `begun`: the steps made before;
    `watched`: where a profile was asked for; `tried`: of several plans that were tried, what was found of each;
    `chosen`: the number of the one that was trained then."""

    steps: tuple[Step, ...]
    traffic: Traffic
    fallbacks: frozenset[str]
    weights: str
    numbers: Numbers
    begun: int
    watched: Watched | None = None
    chosen: int = 0
    tried: tuple[Tried, ...] = ()


@dataclass(frozen=True, slots=True)
class _Refused:
    """What a rank has found wrong."""

    error: PlannerError


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a rank says when it is laid out."""

    weights: str
    notes: tuple[str, ...]
    step_samples: int


def train(
    model: Path, plan: PlanDocument, options: TrainingOptions, *, device: str = "cpu", threads: int = 1,
    as_planned: bool = False, say: Callable[[str], None] | None = None, tell: Callable[[Step], None] | None = None,
    others: Sequence[PlanDocument] = (), tried: Callable[[int, Tried], None] | None = None,
) -> Trained | None:  # fmt: skip
    """Trains the model as the plan says; None on ranks that do not report.  `tell` gets each step when it is made,
    `say` what is to be known beside.  Where there are `others`, all plans are tried first and the fastest is trained;
    `tried` gets what was found of each, with its number.

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
    here = ready(model, plan, device, say)
    speaks = here is None or here.reports
    with workers_for(here, plan.devices, device, threads) as workers:
        chosen, rows = 0, tuple[Tried, ...]()
        if others:
            chosen, rows = fastest(
                workers, model, [plan, *others], device=device, as_planned=as_planned, tell=tried if speaks else None
            )
            plan = [plan, *others][chosen]
        try:
            found = train_on(workers, model, plan, options, as_planned=as_planned, say=say if speaks else None,
                             tell=tell if speaks else None)  # fmt: skip
        except Agreed as error:
            raise (error.error if speaks else Elsewhere(error.error)) from None
    return replace(found, chosen=chosen, tried=rows) if speaks else None


def train_on(
    workers: Workers | Ranks, model: Path, plan: PlanDocument, options: TrainingOptions, *, as_planned: bool = False,
    say: Callable[[str], None] | None = None, tell: Callable[[Step], None] | None = None,
) -> Trained:  # fmt: skip
    """As `train`, on processes that are there; what was trained before on them is let go.

    Raises:
        Agreed: what went wrong, which all ranks know.
        WorkerError: a rank has ended.
    """
    try:
        return _Loop(workers, plan, options, say or _silent)(model, as_planned, tell or _silent)
    except (UsageError, NotFiniteError, VerificationError) as error:
        raise Agreed(error) from None


class Agreed(Exception):
    """An error that all ranks know."""

    def __init__(self, error: PlannerError) -> None:
        super().__init__(str(error))
        self.error = error


def _silent(_: Any) -> None:
    pass


class _Loop:
    def __init__(
        self, workers: Workers | Ranks, plan: PlanDocument, options: TrainingOptions, say: Callable[[str], None]
    ) -> None:
        self.workers, self.plan, self.options, self.say = workers, plan, options, say

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What each rank returned.  The first refusal is raised: of a function in which a rank refuses before it waits
        for others, or all do."""
        found = self.workers.call(_guarded, function, *arguments)
        self._heed(found)
        return found

    @staticmethod
    def _heed(found: list[Any]) -> None:
        for one in found:
            if isinstance(one, _Refused):
                raise Agreed(one.error)

    def __call__(self, model: Path, as_planned: bool, tell: Callable[[Step], None]) -> Trained:
        o = self.options
        before: dict[str, Any] = {}
        checkpoint = None
        if o.load is not None:
            checkpoint, before = self.call(_found, o.load)[0]
        elif o.resume:
            checkpoint, before = self.call(_resumed, o.save)[0]
            o = replace(o, load=checkpoint, weights=o.weights if checkpoint is None else None)
        numbers = o.numbers(self.plan.schedule.optimizer, before)
        seed = int(before.get("seed", 0)) if o.seed is None else o.seed
        if o.data is None and before.get("data"):
            self.say(
                f"{checkpoint} was trained on {before['data']}; without --data the batch is drawn from seed {seed}"
            )
        text = self.plan.model_dump_json(by_alias=True)
        prepared: _Prepared = self.call(_open, model, text, o, seed)[0]
        self.workers.call(_lay_out, text, numbers, seed, as_planned)
        source = prepared.weights
        for note in prepared.notes:
            self.say(note)
        if checkpoint is not None:
            source = f"{checkpoint}"
            if note := self.call(_load, checkpoint)[0]:
                self.say(note)
        if o.save is not None:
            self.call(clear, o.save)  # to know it before steps are made
        if o.profile is not None:
            self.call(_folder, o.profile)
        begun = int(before.get("step", 0))
        end = o.steps if o.resume else begun + o.steps
        if begun >= end:
            return Trained((), Traffic({}, {}, {}), frozenset(), source, numbers, begun)
        made: list[Step] = []
        for number in range(begun + 1, end + 1):
            made.append(self._step(number, prepared.step_samples, last=number == end))
            tell(made[-1])
        found = self.workers.call(_traffic)
        traffic = Traffic.of_all([t for t, _ in found], self.plan.mesh.devices)
        if traffic.executed != traffic.planned:
            raise VerificationError(f"executed {dict(traffic.executed)} but planned {dict(traffic.planned)}")
        fallbacks = frozenset[str]().union(*(f for _, f in found))
        return Trained(tuple(made), traffic, fallbacks, source, numbers, begun, self._watched(made))

    def _watched(self, made: list[Step]) -> Watched | None:
        """Of steps behind those that were made, of which the first, that warms up, does not count if there are more."""
        if self.options.profile is None:
            return None
        found = self.call(_watched)
        usual = median(s.seconds for s in made[1:] or made)
        return Watched(tuple(listed for listed, _ in found), usual, max(held for _, held in found))

    def _step(self, number: int, samples: int, *, last: bool) -> Step:
        o = self.options
        found = self.workers.call(_step)
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
        seconds = max(f.seconds for f in outcomes)
        saved = None
        if o.save is not None and (last or (o.save_every is not None and number % o.save_every == 0)):
            self.call(clear, o.save)
            self.call(_save, o.save)
            saved = place_of(o.save, number)
        return Step(number, outcomes[0].loss, outcomes[0].gradient_norm, seconds, samples / seconds, saved)


# On the ranks


def _guarded(context: Context, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(context, *arguments)
    except PlannerError as error:
        return _Refused(error)


def _found(_: Context, folder: Path) -> tuple[Path, dict[str, Any]]:
    checkpoint = chosen(folder)
    return checkpoint, record_of(checkpoint)


def _resumed(_: Context, folder: Path) -> tuple[Path | None, dict[str, Any]]:
    checkpoint = newest(folder)
    return checkpoint, {} if checkpoint is None else record_of(checkpoint)


def _open(context: Context, model: Path, text: str, options: TrainingOptions, seed: int) -> _Prepared:
    """Looks at everything that is read, without a word to other ranks."""
    plan = PlanDocument.model_validate_json(text)
    graph = graph_of_plan(model, plan)
    if graph.loss is None:
        raise UsageError(
            f"{model}: no output of it is a loss, so that there is nothing to train by; export the model with its "
            "loss, or name the output in its metadata (planner.loss); --check runs it on random gradients"
        )
    # A checkpoint has all parameters: whatever they begin with is overwritten.
    drawn = options.seed if options.weights is not None or options.load is None else seed
    weights = weights_of(graph, model, options.weights, drawn)
    data = None if options.data is None else open_data(graph, options.data, plan.schedule.micro_batches)
    context.state[_KEY] = None  # lets a training go that was there before
    context.state[_OPENED] = graph, weights, data
    notes = []
    if weights.unread:
        notes.append(f"--weights {options.weights}: not read, for the model has none of that name: "
                     f"{', '.join(weights.unread)}")  # fmt: skip
    return _Prepared(weights.said, tuple(notes), batch_rows(graph) * plan.schedule.micro_batches)


def _lay_out(context: Context, text: str, numbers: Numbers, seed: int, as_planned: bool) -> None:
    graph, weights, data = context.state.pop(_OPENED)
    plan = PlanDocument.model_validate_json(text)
    context.state[_KEY] = RankTraining(context, graph, plan, weights, data, numbers, seed, as_planned)


def _training(context: Context) -> RankTraining:
    found: RankTraining = context.state[_KEY]
    return found


def _step(context: Context) -> Any:
    found = _training(context).step()
    return _Refused(found) if isinstance(found, PlannerError) else found


def _folder(_: Context, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--profile {folder}: cannot be made ({error.strerror}); name another folder") from None


def _watched(context: Context) -> Any:
    found = _training(context).watched(_WATCHED)
    return _Refused(found) if isinstance(found, PlannerError) else found


def _save(context: Context, folder: Path) -> None:
    save(_training(context), folder)


def _load(context: Context, checkpoint: Path) -> str:
    return load(_training(context), checkpoint)


def _traffic(context: Context) -> tuple[Traffic, set[str]]:
    training = _training(context)
    return training.traffic(), training.stage.fallbacks
