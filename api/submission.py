"""Requests that submit jobs: how they are refused and answered, and their webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import Request, Response

from planner.api.auth import mark_of
from planner.api.descriptions import header, link
from planner.api.errors import Problem
from planner.api.jobs.records import JobRecord
from planner.api.links import job_of
from planner.api.respond import document
from planner.api.schemas import Job
from planner.api.service import Service, preferred_wait
from planner.api.webhooks import checked

__all__ = ["ANSWERS", "JOB_LINKS", "PLAN_LINKS", "REFUSALS", "submitted", "webhook_of"]

JOB_LINKS: Final = {
    "job": link("getJob", "The job.", job_id="$response.body#/id"),
    "events": link("getJobEvents", "Its events.", job_id="$response.body#/id"),
    "cancel": link("cancelJob", "Ends it with the best plan so far.", job_id="$response.body#/id"),
}
PLAN_LINKS: Final = {
    "plan": link("getPlan", "Its plan.", plan_id="$response.body#/plan"),
    "artifacts": link("listArtifacts", "Files made of its plan.", plan_id="$response.body#/plan"),
}
_HEADERS: Final = {
    "Location": header("The job."),
    "Preference-Applied": header("`wait=N`, where it was.", required=False),
}
ANSWERS: Final[Mapping[int | str, dict[str, Any]]] = {
    200: {"model": Job, "description": "The job, ended", "headers": _HEADERS, "links": JOB_LINKS | PLAN_LINKS},
    202: {
        "model": Job,
        "description": "The job, which goes on",
        "headers": _HEADERS | {"Retry-After": header("Seconds to wait before asking again.", "integer")},
        "links": JOB_LINKS,
    },
}
# What may be said to whoever sends a model.
REFUSALS: Final = (
    *("origin-forbidden", "body-timeout", "too-large", "unsupported-media-type", "validation", "usage"),
    *("idempotency-key-reused", "input-lost", "queue-full", "quota-exceeded", "storage-full"),
)


async def webhook_of(request: Request, service: Service, url: str | None) -> tuple[str, str] | None:
    """URL and secret of the webhook that a request asks for.  Problem where it may not have it."""
    if url is None:
        return None
    secret = await service.look(mark_of, request, service)
    if secret is None:
        raise Problem("usage", "webhook: it is signed by the key of the request, and the service has no keys")
    return checked(url, service.settings.webhook_hosts), secret


async def submitted(request: Request, service: Service, job: JobRecord) -> Response:
    """The job, waited for where the caller prefers that."""
    headers = {"location": f"/v1/jobs/{job.id}"}
    wait = preferred_wait(request, service, job.tenant)
    if wait is not None:
        job = await service.finished_job(job, wait)
        headers["preference-applied"] = f"wait={wait}"
    if wait is not None and job.ended:
        return document(request, job_of(job), headers=headers)
    return document(request, job_of(job), status=202, headers=headers | {"retry-after": "1"})
