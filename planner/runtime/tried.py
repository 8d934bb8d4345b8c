"""Several plans of one model, run for some steps each, and the fastest of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from planner.planning import PlanDocument
from planner.runtime.session import Session
from planner.runtime.started import Ranks
from planner.runtime.workers import Workers

__all__ = ["Tried", "fastest"]

_WARM, _STEPS = 1, 5


@dataclass(frozen=True, slots=True)
class Tried:
    """Seconds of a step without its optimizer: as predicted, and the median of those that were run."""

    predicted_s: float
    measured_s: float


def fastest(
    workers: Workers | Ranks,
    model: Path,
    plans: Sequence[PlanDocument],
    *,
    as_planned: bool,
    tell: Callable[[int, Tried], None] | None,
) -> tuple[PlanDocument, tuple[Tried, ...]]:
    """The plan whose steps on random weights are shortest, and what was found of each, in their order; the same on all
    ranks.  `tell` gets each with its number when it is found."""
    found: list[Tried] = []
    for number, plan in enumerate(plans):
        session = Session(workers, model, plan, as_planned=as_planned)
        seconds = session.step(_WARM + _STEPS)[_WARM:]
        session.close()
        found.append(Tried(plan.cost.step_time_s, median(seconds)))
        if tell is not None:
            tell(number, found[-1])
    best = min(range(len(plans)), key=lambda k: found[k].measured_s)
    return plans[best], tuple(found)
