"""Why a plan is as it is, as `planner explain` says it."""

from __future__ import annotations

from planner.api.jobs.execute import Tell
from planner.api.jobs.plan_model import lay_out_model
from planner.api.jobs.work import JobInput, JobResult
from planner.planning import read_plan
from planner.requests.explanation import explanation

__all__ = ["explain"]


def explain(work: JobInput, tell: Tell) -> JobResult:
    """explain.json: of `operator`, or of the plan as a whole, with so many `alternatives`."""
    path = work.lay_out("plan.json", "plan.json")
    model = lay_out_model(work, read_plan(path), "explain.json")
    tell.phase("search")
    document = explanation(
        path, work.options.get("operator"), model=model, most=int(work.options.get("alternatives", 3))
    )
    text = document.model_dump_json(by_alias=True, indent=1) + "\n"
    return JobResult({"explain.json": (text.encode(), "application/json")})
