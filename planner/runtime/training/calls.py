"""What the ranks of a training are called for.

What goes wrong on a rank alone, and is known before ranks wait for each other, comes back as `Refused`: all ranks then
end the same way, and one reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import PlannerError, UsageError
from planner.ir import Graph
from planner.planning import PlanDocument
from planner.runtime.session import Traffic
from planner.runtime.training.checkpoint import chosen, load, newest, record_of, save
from planner.runtime.training.data import Data, batch_rows, open_data
from planner.runtime.training.options import Numbers, TrainingOptions
from planner.runtime.training.rank import RankTraining, graph_of_plan
from planner.runtime.training.weights import Weights, weights_of
from planner.runtime.workers import Context

__all__ = ["KEY", "Prepared", "Refused", "opened", "training_of"]

KEY, _OPENED = "training", "training: opened"
_WATCHED = 3  # steps of a profile


@dataclass(frozen=True, slots=True)
class Refused:
    """What a rank has found wrong."""

    error: PlannerError


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a rank says when it is laid out."""

    weights: str
    notes: tuple[str, ...]
    step_samples: int


def training_of(context: Context) -> RankTraining:
    """The training that was laid out."""
    found: RankTraining = context.state[KEY]
    return found


def guarded(context: Context, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(context, *arguments)
    except PlannerError as error:
        return Refused(error)


def find(_: Context, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The checkpoint that is to be loaded, and what it says of its training."""
    checkpoint = chosen(folder)
    return checkpoint, record_of(checkpoint)


def find_newest(_: Context, folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """As `find`, where there need not be one."""
    checkpoint = newest(folder)
    return checkpoint, {} if checkpoint is None else record_of(checkpoint)


def opened(
    model: Path, plan: PlanDocument, options: TrainingOptions, seed: int, graph: Graph
) -> tuple[Weights, Data | None]:
    """What is read under a plan."""
    if graph.loss is None:
        raise UsageError(
            f"{model}: no output of it is a loss, so that there is nothing to train by; export the model with its "
            "loss, or name the output in its metadata (planner.loss); --check runs it on random gradients"
        )
    # A checkpoint has all parameters: whatever they begin with is overwritten.
    drawn = options.seed if options.weights is not None or options.load is None else seed
    weights = weights_of(graph, model, options.weights, drawn)
    data = None if options.data is None else open_data(graph, options.data, plan.schedule.micro_batches)
    return weights, data


def look(
    context: Context, model: Path, text: str, options: TrainingOptions, seed: int, graph: Graph | None = None
) -> Prepared:
    """Looks at everything that is read, without a word to other ranks; `graph`: of the model under the plan, where it
    has been read."""
    plan = PlanDocument.model_validate_json(text)
    graph = graph_of_plan(model, plan) if graph is None else graph
    weights, data = opened(model, plan, options, seed, graph)
    context.state[KEY] = None  # lets a training go that was there before
    context.state[_OPENED] = graph, weights, data
    notes = []
    if weights.unread:
        notes.append(f"--weights {options.weights}: not read, for the model has none of that name: "
                     f"{', '.join(weights.unread)}")  # fmt: skip
    return Prepared(weights.said, tuple(notes), batch_rows(graph) * plan.schedule.micro_batches)


def lay_out(context: Context, text: str, numbers: Numbers, seed: int, as_planned: bool) -> None:
    graph, weights, data = context.state.pop(_OPENED)
    plan = PlanDocument.model_validate_json(text)
    context.state[KEY] = RankTraining(context, graph, plan, weights, data, numbers, seed, as_planned)


def step(context: Context) -> Any:
    found = training_of(context).step()
    return Refused(found) if isinstance(found, PlannerError) else found


def folder_of_profile(_: Context, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--profile {folder}: cannot be made ({error.strerror}); name another folder") from None


def watched(context: Context) -> Any:
    found = training_of(context).watched(_WATCHED)
    return Refused(found) if isinstance(found, PlannerError) else found


def save_to(context: Context, folder: Path) -> None:
    save(training_of(context), folder)


def load_from(context: Context, checkpoint: Path) -> str:
    return load(training_of(context), checkpoint)


def traffic(context: Context) -> tuple[Traffic, set[str]]:
    training = training_of(context)
    return training.traffic(), training.stage.fallbacks
