"""What a known configuration, or a plan, costs on a model: as `planner evaluate` says it."""

from __future__ import annotations

import json

from planner.api.jobs.execute import Tell
from planner.api.jobs.requests import evaluation_options
from planner.api.jobs.work import JobInput, JobResult
from planner.requests.evaluation import evaluated

__all__ = ["evaluate"]


def evaluate(work: JobInput, tell: Tell) -> JobResult:
    """evaluation.json, which is the summary too."""
    plan = "plan" in work.inputs
    options = evaluation_options(work.options, plan=plan)
    work.lay_out("model", str(options.model))
    if plan:
        work.lay_out("plan", str(options.plan))
    tell.phase("import")
    document = evaluated(options)
    text = json.dumps(document, indent=1) + "\n"
    return JobResult({"evaluation.json": (text.encode(), "application/json")}, document)
