"""What becomes of a request that brings a model: refused before its body is read where that can be said, else taken in,
and nothing of it stays on disk where it is refused after all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from planner.api.jobs.errors import StoreError
from planner.api.jobs.records import JobRecord
from planner.api.jobs.tasks import Submission, Task
from planner.api.service import Service
from planner.api.spans import parent_now
from planner.api.uploads import Upload

__all__ = ["SMALL", "admitted", "admitted_together", "expect_body"]

SMALL: Final = 2**20  # bytes that are read before it is said whether there is room
FORM: Final = 64 * 2**10  # bytes that a form may have beside the model and the constraints


async def expect_body(request: Request, service: Service, tenant: str, idempotency: str | None) -> None:
    """Problem where the tenant has no room for another request, whatever it brings.  A small body is read first: it
    may be a request that was answered before, or one that others have made, which need no room."""
    declared = request.headers.get("content-length")
    size = int(declared) if declared is not None else None  # a number: the edge has looked at it
    if size is not None and size <= SMALL:
        return
    if await service.blocking.run(tenant, service.store.expect_room, tenant, None, idempotency):
        return  # it is answered by the job of then, and adds nothing
    await service.blocking.run(tenant, service.quotas.check, tenant, max(0, (size or 0) - FORM))


async def admitted(
    service: Service,
    tenant: str,
    task: Task,
    upload: Upload,
    name: str,
    idempotency: str | None,
    webhook: tuple[str, str] | None = None,
) -> JobRecord:
    """The job on a task, whose inputs are blobs from then on.  Errors as of `Store.submit`; Problem."""
    identity = [task.kind, dict(task.inputs), dict(task.options)]
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    if idempotency is None and (job := await service.look(service.store.answered, tenant, task)) is not None:
        await _told(service, job, webhook)
        return job
    (job,) = await _made(service, tenant, [Submission(task, name, idempotency, fingerprint, webhook)], upload)
    return job


async def admitted_together(
    service: Service, tenant: str, submissions: Sequence[Submission], upload: Upload, idempotency: str | None
) -> list[JobRecord]:
    """As `admitted`: a job for each of them, or none."""
    if idempotency is not None:
        whole = [[s.task.kind, dict(s.task.inputs), dict(s.task.options)] for s in submissions]
        fingerprint = hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()
        # No caller's key has a space in it.
        keyed = [
            replace(s, idempotency=f"{idempotency} {k}", fingerprint=fingerprint) for k, s in enumerate(submissions)
        ]
        return await _made(service, tenant, keyed, upload)
    known = [await service.look(service.store.answered, tenant, s.task) for s in submissions]
    new = [s for s, job in zip(submissions, known, strict=True) if job is None]
    made = iter(await _made(service, tenant, new, upload) if new else ())
    for submission, job in zip(submissions, known, strict=True):
        if job is not None:
            await _told(service, job, submission.webhook)
    return [next(made) if job is None else job for job in known]


async def _told(service: Service, job: JobRecord, webhook: tuple[str, str] | None) -> None:
    """Who asks again for what was answered before is sent a webhook as well."""
    if webhook is not None:
        # In no queue of the tenant's, which may be full: the job is there.
        await run_in_threadpool(service.store.webhooks.add, job.id, *webhook)


async def _made(service: Service, tenant: str, submissions: Sequence[Submission], upload: Upload) -> list[JobRecord]:
    store, first, accepted, request = service.store, submissions[0], False, object()
    try:
        if not await service.blocking.run(tenant, store.expect_room, tenant, first.task, first.idempotency):
            await service.blocking.run(tenant, service.quotas.hold, tenant, request, upload.sizes)
        async with _arriving(service, tuple(upload.digests.values())):
            await upload.keep(partial(service.blocking.run, tenant))
            made = await service.blocking.run(tenant, store.submit_all, tenant, submissions)
        accepted = True
    finally:
        service.quotas.let_go(tenant, request, accepted=accepted)
    if (parent := parent_now()) is not None:
        # In no queue of the tenant's, which may be full: the jobs are made, and the request is to hear of them.
        await run_in_threadpool(store.traces.add, [m.job.id for m in made], parent)
    return [m.job for m in made]


@asynccontextmanager
async def _arriving(service: Service, digests: tuple[str, ...]) -> AsyncIterator[None]:
    """Blobs of these digests are needed until the block ends; where it fails, they go unless something names them."""
    service.arriving.update(digests)
    failed = True
    try:
        yield
        failed = False
    finally:
        service.arriving.subtract(digests)
        unwanted = [digest for digest in digests if not service.arriving[digest]]
        for digest in unwanted:
            del service.arriving[digest]
        if failed:
            for digest in unwanted:
                with suppress(StoreError):  # purging finds it, and the request failed by something else
                    await run_in_threadpool(service.store.discard, digest, service.arriving.__contains__)
