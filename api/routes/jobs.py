"""`/v1/jobs`: how far requests are; their events; giving one up."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Header, Path, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from planner.api.arguments import Cursor, Limit, Prefer
from planner.api.auth import Tenant, tenant_of
from planner.api.descriptions import header, link, problems
from planner.api.errors import Problem
from planner.api.jobs.errors import NotFound, StoreBusy
from planner.api.links import job_of
from planner.api.moments import moment
from planner.api.pages import next_link
from planner.api.respond import document
from planner.api.schemas import Job, Jobs
from planner.api.service import Service, preferred_wait, service_of
from planner.api.submission import JOB_LINKS, PLAN_LINKS

__all__ = ["router"]


router = APIRouter(tags=["jobs"])

_EVENT_ID = re.compile("[0-9]{1,18}")

STREAMS = 100  # event streams of one tenant
BATCH = 500  # events read at a time
KEY_S = 0.5  # between two looks whether the key of a stream stands still, which streams of a key share
EVENT: Final = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {
            "enum": [
                *("queued", "started", "phase", "progress", "message", "restarted"),
                *("succeeded", "failed", "cancelled"),
            ]
        },
        "data": {"type": "string"},
        "retry": {"type": "integer"},
    },
}

JobId = Annotated[str, Path(description="Id of a job.", json_schema_extra={"pattern": "^[0-9a-f]{32}$"})]


@router.get(
    "/v1/jobs",
    operation_id="listJobs",
    summary="Jobs, the newest first",
    responses={
        200: {
            "model": Jobs,
            "headers": {"Link": header('`rel="next"`, where there are more.', required=False)},
            "links": {"next": link("listJobs", "The next page.", cursor="$response.body#/next")},
        },
        **problems("cursor-invalid", "validation"),
    },
)
async def list_jobs(
    request: Request,
    tenant: Tenant,
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"] | None = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    service = service_of(request)
    after = service.signer.after(f"jobs {tenant}", cursor)
    # Of one state: it may look through all jobs of the tenant.
    found = await service.blocking.run(tenant, service.store.jobs, tenant, status, limit + 1, after)
    more = service.signer.seal(f"jobs {tenant}", found[limit - 1].id) if len(found) > limit else None
    page = Jobs(items=[job_of(j) for j in found[:limit]], next=more)
    return document(request, page, headers=next_link(request.url, more))


@router.get(
    "/v1/jobs/{job_id}",
    operation_id="getJob",
    summary="The state of a job",
    responses={
        200: {"model": Job, "links": JOB_LINKS | PLAN_LINKS},
        **problems("not-found", "validation"),
    },
)
async def get_job(request: Request, tenant: Tenant, job_id: JobId, prefer: Prefer = None) -> Response:
    """With `Prefer: wait=N` the answer comes once the job has ended, or after N seconds."""
    service = service_of(request)
    return await _waited(request, service, await service.look(service.store.job, tenant, job_id))


@router.delete(
    "/v1/jobs/{job_id}",
    operation_id="forgetJob",
    summary="Forget a job that has ended",
    status_code=204,
    response_class=Response,
    responses={
        204: {"description": "It is gone"},
        **problems("origin-forbidden", "not-found", "job-unfinished", "validation", "storage-full"),
    },
)
async def forget_job(request: Request, tenant: Tenant, job_id: JobId) -> Response:
    """Its plan stays until that is forgotten, too."""
    service = service_of(request)
    await service.blocking.run(tenant, service.store.forget_job, tenant, job_id)
    service.quotas.forget(tenant)
    return Response(status_code=204)


@router.post(
    "/v1/jobs/{job_id}:cancel",
    operation_id="cancelJob",
    summary="Give a job up",
    status_code=200,
    responses={
        200: {"model": Job, "description": "The job as it is now; `plan` has the best plan so far once it has ended"},
        **problems("origin-forbidden", "not-found", "validation", "storage-full"),
    },
)
async def cancel_job(request: Request, tenant: Tenant, job_id: JobId, prefer: Prefer = None) -> Response:
    """A search ends with the best plan that it has.  A job that has ended stays as it is."""
    service = service_of(request)
    return await _waited(request, service, await service.blocking.run(tenant, service.store.cancel, tenant, job_id))


async def _waited(request: Request, service: Service, job: Any) -> Response:
    wait = preferred_wait(request, service, job.tenant)
    if wait is None:
        return document(request, job_of(job))
    job = await service.finished_job(job, wait)
    return document(request, job_of(job), headers={"preference-applied": f"wait={wait}"})


@router.get(
    "/v1/jobs/{job_id}/events",
    operation_id="getJobEvents",
    summary="What happens to a job, as it happens",
    responses={
        200: {
            "description": (
                "Events: queued, started, phase, progress, message, restarted, then one of succeeded, failed, "
                "cancelled, which is the last; `data` is JSON"
            ),
            "content": {"text/event-stream": {"schema": EVENT}},
        },
        204: {"description": "There is nothing after `Last-Event-ID`, and never will be"},
        **problems("not-found", "validation"),
    },
)
async def get_events(
    request: Request,
    tenant: Tenant,
    job_id: JobId,
    last_event_id: Annotated[str | None, Header(description="Only what came after this event.")] = None,
) -> Response:
    service = service_of(request)
    job = await service.look(service.store.job, tenant, job_id)
    # Whoever has a clock that runs backwards, or something that is no number, gets all events again.
    after = int(last_event_id) if last_event_id and _EVENT_ID.fullmatch(last_event_id) else 0
    if after and not await service.look(service.store.events, tenant, job_id, after - 1, 1):
        after = 0  # no event of this job: nothing would ever come behind it
    if job.ended and not await service.look(service.store.events, tenant, job_id, after, 1):
        return Response(status_code=204)
    if service.streams[tenant] >= STREAMS:
        message = f"{STREAMS} event streams are open already; close some"
        raise Problem("rate-limited", message, headers={"Retry-After": "5"})
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if request.state.method == "HEAD":
        return Response(media_type="text/event-stream", headers=headers)
    request.state.stream = True
    body = _stream(service, tenant, job_id, job.task, after, lambda: _may_go_on(request, service, tenant))
    return _CountedStream(service, tenant, body, headers)


class _CountedStream(StreamingResponse):
    """Counts from when it is made, so that streams of one moment are not more together than a tenant may have."""

    def __init__(self, service: Service, tenant: str, body: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._service, self._tenant = service, tenant
        service.streams[tenant] += 1
        service.metrics.streams.inc()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._service.metrics.streams.dec()
            self._service.streams[self._tenant] -= 1
            if not self._service.streams[self._tenant]:
                del self._service.streams[self._tenant]


def _may_go_on(request: Request, service: Service, tenant: str) -> bool:
    """Whether the key or session stands still: looked at once for all streams that were opened by it."""
    given = f"{request.headers.get('authorization')} {request.headers.get('cookie')}"
    shown = hashlib.sha256(given.encode()).digest()  # headers are long, and hold secrets
    found = service.shown.get(shown)
    if found is None or time.monotonic() > found[0] + KEY_S:
        try:
            holder = tenant_of(request, service)
        except Problem:
            holder = None
        if len(service.shown) >= STREAMS * 100:
            service.shown.clear()
        found = service.shown[shown] = time.monotonic(), holder
    return found[1] == tenant


async def _stream(
    service: Service, tenant: str, job: str, task: int, after: int, may_go_on: Callable[[], bool]
) -> AsyncIterator[bytes]:
    """Ends after the last event, when the server stops, the key is revoked or after long: clients come back with
    `Last-Event-ID`."""
    beat = service.settings.heartbeat
    try:
        yield b"retry: 1000\n\n"
        spoken = key_checked = time.monotonic()
        until = spoken + service.settings.longest_stream
        with service.changes.watch(task) as watch:
            changed = True
            while not service.changes.stopping and (now := time.monotonic()) < until:
                if now > key_checked + KEY_S:
                    if not await service.look(may_go_on):
                        return
                    key_checked = now
                found = await service.look(service.store.events, tenant, job, after, BATCH) if changed else []
                if found:
                    after, spoken = found[-1].seq, now
                    yield b"".join(_text(e.seq, e.type, {"at": moment(e.at), **e.data}) for e in found)
                    if found[-1].last:
                        return
                    continue
                if now >= spoken + beat:
                    spoken = now
                    yield b": still here\n\n"
                changed = await watch.wait(max(0.0, min(spoken + beat, until, key_checked + KEY_S) - now))
    except (NotFound, StoreBusy):
        return  # the job was removed, or the store cannot be asked: who comes back is told so


def _text(seq: int, kind: str, data: dict[str, Any]) -> bytes:
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()
