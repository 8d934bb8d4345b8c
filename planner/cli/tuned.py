"""`planner run --autotune`: the plans of `planner search --top-k`, of which the fastest is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import UsageError

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.runtime.tried import Tried

__all__ = ["fastest_of", "other_plans", "plan_paths", "telling", "tuned"]


def plan_paths(first: Path, count: int) -> list[Path]:
    """So many plans, as `planner search --top-k` names them."""
    return [first, *(first.with_name(f"{first.stem}-{k}.json") for k in range(2, count + 1))]


def other_plans(first: Path, plan: PlanDocument, count: int) -> list[PlanDocument]:
    """Those that are tried beside `plan`, which lies at `first`: so many together, or as many as there are.

    UsageError where there is none, or where one is not a plan of the same job.
    """
    from planner.planning import read_plan

    paths = [path for path in plan_paths(first, count)[1:] if path.is_file()]  # a search may find fewer
    if count > 1 and not paths:
        raise UsageError(
            f"--autotune {count}: there is no {plan_paths(first, 2)[1]}; write several plans with planner search "
            f"--space whole --top-k {count}, or leave --autotune out"
        )
    found = [read_plan(path) for path in paths]
    for path, other in zip(paths, found, strict=True):
        if _job(other) != _job(plan):
            raise UsageError(
                f"--autotune {count}: {path} is for another model, number of devices or mode than {first}; search again"
                f" with --top-k {count}, or remove it"
            )
    return found


def _job(plan: PlanDocument) -> tuple[object, ...]:
    return plan.model.digest, plan.model.batch, plan.devices, plan.schedule.mode


def telling(paths: Sequence[Path], say: Callable[[str], None]) -> Callable[[int, Tried], None]:
    """What says each plan's time when it is found."""
    from planner.report.words import time_text

    width = max(len(path.name) for path in paths)

    def tell(number: int, tried: Tried) -> None:
        say(
            f"{paths[number].name:{width}}  a step without its optimizer takes {time_text(tried.measured_s)}, "
            f"{time_text(tried.predicted_s)} predicted with it"
        )

    return tell


def fastest_of(tried: Sequence[Tried]) -> int:
    """The number of the fastest plan; the first where none was tried."""
    return min(range(len(tried)), key=lambda k: tried[k].measured_s, default=0)


def tuned(first: Path, tried: Sequence[Tried]) -> dict[str, Any]:
    """What `--json` says of plans that were tried."""
    paths = plan_paths(first, len(tried)) if tried else []
    rows = [{"plan": str(path), **asdict(t)} for path, t in zip(paths, tried, strict=True)]
    return {"plan": rows[fastest_of(tried)]["plan"], "autotune": rows} if rows else {}
