"""Several plans of one model, run for some steps each, and the fastest of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import torch

from planner.errors import InputError, UsageError
from planner.planning import PlanDocument
from planner.runtime.ready import check
from planner.runtime.session import Session, forget_values
from planner.runtime.started import Ranks
from planner.runtime.workers import Context, Workers

__all__ = ["Tried", "fastest"]

_WARM: Final = 1
_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class Tried:
    """Seconds of a step, as predicted and the median of those that were run, which is without the optimizer;
    `refused`: why a plan was not tried, which then took for ever."""

    predicted_s: float
    measured_s: float
    refused: str = ""


def fastest(
    workers: Workers | Ranks,
    model: Path,
    plans: Sequence[PlanDocument],
    *,
    device: str,
    as_planned: bool,
    tell: Callable[[int, Tried], None] | None,
) -> tuple[int, tuple[Tried, ...]]:
    """The number of the plan whose steps on random weights are shortest, and what was found of each, in their order;
    the same on all ranks.  `tell` gets each with its number when it is found.  The first one is known to be in order.
    """
    found: list[Tried] = []
    for number, plan in enumerate(plans):
        found.append(_tried(workers, model, plan, device, as_planned))
        if tell is not None:
            tell(number, found[-1])
    workers.call(_forget)
    return min(range(len(plans)), key=lambda k: found[k].measured_s), tuple(found)


def _tried(workers: Workers | Ranks, model: Path, plan: PlanDocument, device: str, as_planned: bool) -> Tried:
    predicted = plan.cost.step_time_s
    try:
        check(model, plan, device)
    except (InputError, UsageError) as error:
        return Tried(predicted, math.inf, str(error))
    session = Session(workers, model, plan, as_planned=as_planned)
    seconds = session.step(_WARM + _STEPS)[_WARM:]
    session.close()
    return Tried(predicted, median(seconds))


def _forget(_: Context) -> None:
    """Random weights of the trials, and what a GPU's allocator holds of them."""
    forget_values()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
