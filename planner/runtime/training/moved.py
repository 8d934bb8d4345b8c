"""A rank of a training that others have left: where it stands, and its state as another plan wants it.

The training that there was stays as it is until the new one is taken: another rank may be lost meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from planner.ir import Graph
from planner.planning import PlanDocument
from planner.runtime.exchange import exchange
from planner.runtime.training.calls import KEY, opened, training_of
from planner.runtime.training.checkpoint import Kept, fresh, state_of
from planner.runtime.training.options import TrainingOptions
from planner.runtime.training.rank import RankTraining, StepOutcome
from planner.runtime.workers import Context
from planner.transfer.schedule import Schedule

__all__ = ["Standing", "complete", "let_go", "receive", "relay", "stand", "take"]

_MOVED, _NEXT = "training: moved", "training: next"
_COUNT = "step"  # of AdamW's state, beside what has a parameter's shape
_BUDGET = 64 << 20


@dataclass(frozen=True, slots=True)
class Standing:
    """Of one rank: the steps it has made, the last one's outcome, whether the gradients of the next are complete here,
    and (type, bytes of an element) of all that the training keeps, by name, on whatever rank."""

    step: int
    made: StepOutcome | None
    pending: bool
    kinds: Mapping[str, tuple[str, int]]


def stand(context: Context) -> Standing:
    t = training_of(context)
    kinds = {n: _kind(t.graph.tensors[n].dtype) for n in t.layouts}
    kinds |= {f"{n}.{slot}": kinds[n] for n in t.trained for slot in t.numbers.slots}
    return Standing(t.step_number, t.made, t.pending is not None, kinds)


def _kind(dtype: str) -> tuple[str, int]:
    found: torch.dtype = getattr(torch, dtype)
    return dtype, found.itemsize


def complete(context: Context, outcome: StepOutcome) -> None:
    """Makes the step that another rank has made."""
    training_of(context).complete(outcome)


def receive(context: Context, schedule: Schedule) -> int:
    """Takes part in moving the state, and keeps what comes here beside what there is; the bytes that were sent."""
    t = training_of(context)
    _drop(context)
    kept = _kept(t)
    mine: dict[str, Tensor] = {n: p.data for n, p in t.parameters.items()}
    mine |= {f"{n}.{slot}": s[slot] for n, s in kept.items() for slot in t.numbers.slots}
    done = exchange(schedule, mine, budget=_BUDGET)
    # Counts belong to parameters, of which a rank may not have held any part.
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, {n: float(s[_COUNT]) for n, s in kept.items() if _COUNT in s})
    counts: dict[str, float] = {}
    for found in every:
        counts |= found
    context.state[_MOVED] = done.tensors, counts
    return done.sent_bytes


def let_go(context: Context) -> None:
    """Frees the state of the training that there was, and what has come here."""
    _drop(context)
    context.state[KEY] = None


def _drop(context: Context) -> None:
    context.state.pop(_MOVED, None)
    context.state.pop(_NEXT, None)


def _kept(t: RankTraining) -> Kept:
    """What the optimizer keeps, as it would begin where it has not."""
    return fresh(t) | state_of(t)


def relay(
    context: Context, model: Path, text: str, options: TrainingOptions, seed: int, graph: Graph, as_planned: bool
) -> int:  # fmt: skip
    """Lays the new plan out over what has come here; the samples of a step."""
    old = training_of(context)
    plan = PlanDocument.model_validate_json(text)
    weights, data = opened(model, plan, options, seed, graph)
    tensors, counts = context.state.pop(_MOVED)
    parameters = {n: tensors[n] for n in old.layouts if n in tensors}
    t = RankTraining(context, graph, plan, weights, data, old.numbers, old.seed, as_planned, placed=parameters)
    for name, state in fresh(t).items():
        for slot in t.numbers.slots:
            state[slot] = tensors[f"{name}.{slot}"]
        if _COUNT in state:
            state[_COUNT].fill_(counts[name])
        assert t.optimizer is not None
        t.optimizer.state[t.parameters[name]] = state
    t.begun(old.step_number, old.position)
    context.state[_NEXT] = t
    return t.step_samples


def take(context: Context) -> None:
    """Goes on with the new training, and lets the one before go."""
    context.state[KEY] = context.state.pop(_NEXT)
