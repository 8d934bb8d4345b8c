"""What running devices send each other when they change from a plan to another."""

from __future__ import annotations

import json

from planner.api.jobs.artifacts import JSON
from planner.api.jobs.execute import Tell
from planner.api.jobs.work import JobInput, JobResult
from planner.checkpoint.layouts import layouts_of_plan
from planner.checkpoint.moving import OPTIMIZERS, transfer_plan
from planner.errors import UsageError
from planner.planning import read_plan

__all__ = ["transfer"]


def transfer(work: JobInput, tell: Tell) -> JobResult:
    """transfer.json from plan `a` to plan `b`."""
    before, after = (layouts_of_plan(read_plan(work.lay_out(n, f"{n}.json")), f"plan {n}") for n in ("a", "b"))
    lost, optimizer = work.options.get("lost", []), work.options.get("optimizer", "adam")
    outside = [r for r in lost if r >= before.ranks]
    if outside:
        raise UsageError(f"lost {outside[0]}: the plan is for ranks 0 to {before.ranks - 1}")
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"optimizer {optimizer!r}: expected one of {', '.join(OPTIMIZERS)}")
    found = transfer_plan(before, after, optimizer=optimizer, lost=lost).document()
    return JobResult({"transfer.json": ((json.dumps(found) + "\n").encode(), JSON)})
