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

__all__ = ["other_plans", "telling", "tuned"]


def other_plans(first: Path, plan: PlanDocument, count: int) -> dict[Path, PlanDocument]:
    """Those that are tried beside `plan`, which lies at `first`: so many together, or as many as there are.

    UsageError where there is none, or where one is not a plan of the same job.
    """
    from planner.planning import read_plan

    named = [first.with_name(f"{first.stem}-{k}.json") for k in range(2, count + 1)]  # as search names them
    found = {path: read_plan(path) for path in named if path.is_file()}  # of which it may find fewer
    if named and not found:
        raise UsageError(
            f"--autotune {count}: there is no {named[0]}; write several plans with planner search --space whole "
            f"--top-k {count}, or leave --autotune out"
        )
    for path, other in found.items():
        if _job(other) != _job(plan):
            raise UsageError(
                f"--autotune {count}: {path} is for another model, batch, number of devices or mode than {first}; "
                f"search again with --top-k {count}, or remove it"
            )
    return found


def _job(plan: PlanDocument) -> tuple[object, ...]:
    """What is the same of all plans of one search: those of several micro-batches are of a graph of fewer samples."""
    shapes = {n: tuple(p.shape) for n, p in plan.parameters.items()}
    first = next((x.shape[0] for x in plan.inputs.values() if x.shape), 1)
    return shapes, plan.model.bind, first * plan.schedule.micro_batches, plan.devices, plan.schedule.mode


def telling(paths: Sequence[Path], say: Callable[[str], None]) -> Callable[[int, Tried], None]:
    """What says each plan's time when it is found."""
    from planner.report.words import time_text

    width = max(len(path.name) for path in paths)

    def tell(number: int, tried: Tried) -> None:
        name = f"{paths[number].name:{width}}"
        if tried.refused:
            say(f"{name}  not tried: {tried.refused}")
        else:
            say(
                f"{name}  a step without its optimizer takes {time_text(tried.measured_s)}, "
                f"{time_text(tried.predicted_s)} predicted with it"
            )

    return tell


def tuned(paths: Sequence[Path], chosen: int, tried: Sequence[Tried]) -> dict[str, Any]:
    """What `--json` says of plans that were tried."""
    rows = [
        {"plan": str(path), **asdict(t), "measured_s": None if t.refused else t.measured_s}
        for path, t in zip(paths, tried, strict=False)
    ]
    return {"plan": str(paths[chosen]), "autotune": rows} if rows else {}
