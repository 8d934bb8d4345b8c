"""Records of the store as documents of the service."""

from __future__ import annotations

from typing import Any

from planner.api.jobs import records
from planner.api.moments import moment
from planner.api.schemas import Job, PlanEntry, Progress

__all__ = ["entry_of", "job_of", "progress_of"]


def job_of(job: records.JobRecord) -> Job:
    at = f"/v1/jobs/{job.id}"
    links = {"self": at, "events": f"{at}/events"}
    if not job.ended:
        links["cancel"] = f"{at}:cancel"
    if job.plan is not None:
        links |= {"plan": f"/v1/plans/{job.plan}", "artifacts": f"/v1/plans/{job.plan}/artifacts"}
    values: dict[str, Any] = {
        "id": job.id,
        "kind": job.kind,
        "name": job.name,
        "status": job.status,
        "created_at": moment(job.created_at),
        "started_at": None if job.started_at is None else moment(job.started_at),
        "finished_at": None if job.finished_at is None else moment(job.finished_at),
        "progress": progress_of(job.progress),
        "plan": job.plan,
        "error": job.error,
        "summary": dict(job.summary),
        "options": dict(job.options),
        "attempts": job.attempts,
        "links": links,
    }
    return Job.model_validate(values)


def progress_of(progress: Any) -> Progress:
    return Progress.model_validate(dict(progress))


def entry_of(plan: records.Plan) -> PlanEntry:
    at = f"/v1/plans/{plan.id}"
    return PlanEntry(
        id=plan.id,
        name=plan.name,
        created_at=moment(plan.created_at),
        summary=dict(plan.summary),
        options=dict(plan.options),
        links={"self": at, "artifacts": f"{at}/artifacts"},
    )
