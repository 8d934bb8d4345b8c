"""What becomes of a request that brings a model: refused before its body is read where that can be said, else taken in,
and nothing of it stays on disk where it is refused after all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from planner.api.jobs.records import JobRecord
from planner.api.jobs.tasks import Task
from planner.api.service import Service
from planner.api.uploads import Upload

__all__ = ["SMALL", "admitted", "expect_body"]

SMALL: Final = 2**20  # bytes that are read before it is said whether there is room
FORM: Final = 64 * 2**10  # bytes that a form may have beside the model and the constraints


async def expect_body(request: Request, service: Service, tenant: str, idempotency: str | None) -> None:
    """Problem where the tenant has no room for another request, whatever it brings.  A small body is read first: it
    may be a request that was answered before, or one that others have made, which need no room."""
    declared = request.headers.get("content-length")
    size = int(declared) if declared is not None else None  # a number: the edge has looked at it
    if size is not None and size <= SMALL:
        return
    await run_in_threadpool(service.store.expect_room, tenant, None, idempotency)
    await run_in_threadpool(service.quotas.check, tenant, max(0, (size or 0) - FORM))


async def admitted(
    service: Service, tenant: str, task: Task, upload: Upload, name: str, idempotency: str | None
) -> JobRecord:
    """The job on a task, whose inputs are blobs from then on.  Errors as of `Store.submit`; Problem."""
    store = service.store
    identity = [task.kind, dict(task.inputs), dict(task.options)]
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    job = store.answered(tenant, task) if idempotency is None else None
    if job is not None:
        return job
    if not await run_in_threadpool(store.expect_room, tenant, task, idempotency):
        await run_in_threadpool(service.quotas.check, tenant, upload.size, tuple(upload.digests.values()))
    with _arriving(service, tuple(upload.digests.values())):
        await upload.keep()
        made = await run_in_threadpool(
            store.submit, tenant, task, name=name, idempotency=idempotency, fingerprint=fingerprint
        )
    service.quotas.add(tenant, upload.size)
    return made.job


@contextmanager
def _arriving(service: Service, digests: tuple[str, ...]) -> Iterator[None]:
    """Blobs of these digests are needed until the block ends; where it fails, they go unless something names them."""
    service.arriving.update(digests)
    failed = True
    try:
        yield
        failed = False
    finally:
        for digest in digests:
            service.arriving[digest] -= 1
            if not service.arriving[digest]:
                del service.arriving[digest]
                if failed:
                    service.store.discard(digest, service.arriving.__contains__)
