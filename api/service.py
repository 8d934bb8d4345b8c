"""What the routes share, and waiting for tasks and blobs."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from planner.api.blocking import Blocking
from planner.api.bodies import IN_MEMORY, Content, Filed, Held
from planner.api.errors import Problem, from_store, from_work
from planner.api.jobs.blobs import Blob
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreDamaged, StoreError
from planner.api.jobs.records import JobRecord, TaskState
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.limits import Buckets, Rate
from planner.api.observe import Metrics
from planner.api.pages import Signer
from planner.api.quota import Quotas
from planner.api.rates import SharedBuckets
from planner.api.respond import represent
from planner.api.security import FRAMED, hashed_page
from planner.api.settings import Settings
from planner.api.watch import Changes

__all__ = ["PATIENCE", "Service", "preferred_wait", "service_of"]

PATIENCE: Final = 20.0  # seconds that a request for an artifact waits for it unless it says otherwise
PROBED_S: Final = 1.0  # between two looks whether the store can be written to
WAITS: Final = 100  # requests of one tenant that wait at a time; more are answered at once
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?([0-9]{1,6})\"?", re.IGNORECASE)

_log = logging.getLogger("planner.service")

T = TypeVar("T")
P = ParamSpec("P")
Awaited = TypeVar("Awaited", JobRecord, TaskState)


@dataclass(slots=True)
class Service:
    settings: Settings
    store: Store
    changes: Changes
    metrics: Metrics
    buckets: Buckets | SharedBuckets
    signer: Signer = field(repr=False)
    quotas: Quotas
    blocking: Blocking = field(default_factory=Blocking)
    damage: StoreDamaged | None = None
    on_damage: Callable[[], None] = lambda: None
    probed: tuple[float, Problem | None] = (0.0, None)  # when it was last looked whether the store can be written to
    streams: Counter[str] = field(default_factory=Counter)  # event streams open, by tenant
    shown: dict[bytes, tuple[float, str | None]] = field(default_factory=dict)  # holders of credentials, by digest
    waiting: Counter[str] = field(default_factory=Counter)  # requests that wait, by tenant
    open: Counter[str] = field(default_factory=Counter)  # requests being answered, by tenant
    arriving: Counter[str] = field(default_factory=Counter)  # digests that a request of this moment makes blobs of
    opening: dict[str, asyncio.Task[Content]] = field(default_factory=dict)  # blobs, by digest

    def task(self, tenant: str, kind: str, inputs: Mapping[str, str], options: Mapping[str, Any]) -> Task:
        """Equal ones are one computation: of all tenants, or of this one."""
        return Task(kind, inputs, options, apart=self._apart(tenant))

    def _apart(self, tenant: str) -> str:
        return "" if self.settings.share == "all" else tenant

    def enter(self, request: Request, tenant: str) -> None:
        """Counts a request of the tenant until it is answered.  Problem where too many are being answered."""
        if self.open[tenant] >= self.settings.open_requests:
            message = f"{self.open[tenant]} requests are being answered already; wait for some"
            raise Problem("rate-limited", message, headers={"Retry-After": "1"})
        self.open[tenant] += 1
        request.state.leave = lambda: self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self.open[tenant] -= 1
        if not self.open[tenant]:
            del self.open[tenant]

    def damaged(self, error: StoreDamaged) -> None:
        """The store is of no more use: says so once, and has the server end."""
        if self.damage is None:
            self.damage = error
            _log.error("the store is damaged, and the service ends", extra={"fields": {"why": str(error)}})
            self.on_damage()

    async def expect_writable(self) -> None:
        """Problem where nothing can be written; looks once a second, however many ask."""
        if time.monotonic() > self.probed[0] + PROBED_S:
            self.probed = (time.monotonic(), self.probed[1])
            try:
                await run_in_threadpool(self.store.expect_writable)
                self.probed = (time.monotonic(), None)
            except StoreError as e:
                self.probed = (time.monotonic(), from_store(e))
                _log.error("the store cannot be written to", extra={"fields": {"why": str(e)}})
        if self.probed[1] is not None:
            raise self.probed[1]

    async def look(self, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What the store says: asked at once where that takes microseconds, beside the event loop where the store is
        another machine's."""
        if self.store.database.remote:
            return await run_in_threadpool(read, *args, **kwargs)
        return read(*args, **kwargs)

    async def rate(self, tenant: str, count: int = 1) -> Rate | None:
        """So many requests of the tenant; None where there is no limit."""
        if isinstance(self.buckets, SharedBuckets):
            return await self.buckets.take(tenant, count)
        return self.buckets.take(tenant, count)

    async def finished_job(self, job: JobRecord, seconds: float) -> JobRecord:
        """The job once it has ended, or as it is when the seconds are over, or too many of the tenant wait already."""
        return await self._finished(job, lambda: self.store.job(job.tenant, job.id), job.tenant, seconds)

    async def finished_task(self, state: TaskState, tenant: str, seconds: float) -> TaskState:
        """As `finished_job`."""
        return await self._finished(state, lambda: self.store.state(state.id), tenant, seconds)

    async def _finished(self, found: Awaited, again: Callable[[], Awaited], tenant: str, seconds: float) -> Awaited:
        if found.ended or self.waiting[tenant] >= WAITS:
            return found
        until = time.monotonic() + min(seconds, self.settings.most_wait)
        self.waiting[tenant] += 1
        try:
            with self.changes.watch(found.id if isinstance(found, TaskState) else found.task) as watch:
                found = await self.look(again)
                while not found.ended and (left := until - time.monotonic()) > 0 and not self.changes.stopping:
                    await watch.wait(left)
                    found = await self.look(again)
        finally:
            self.waiting[tenant] -= 1
            if not self.waiting[tenant]:
                del self.waiting[tenant]
        return found

    async def made(self, task: Task, tenant: str, seconds: float) -> TaskState:
        """The task done, or still under way when the seconds are over.  Problem where it failed."""
        state = await self.finished_task(
            await self.blocking.run(tenant, self.store.ensure, task, tenant), tenant, seconds
        )
        if state.error is not None:
            raise from_work(state.error)
        if state.status == "cancelled":
            raise Problem("unavailable", "the computation was ended; ask again", headers={"Retry-After": "1"})
        return state

    async def sent(
        self, request: Request, blob: Blob, tenant: str, headers: Mapping[str, str] | None = None
    ) -> Response:
        """The blob as an answer; a page under the policy of pages that may be framed."""
        response_headers = dict(headers or {})
        if blob.media_type.startswith("text/html"):
            response_headers |= hashed_page(FRAMED)
        return await represent(
            request,
            lambda: self.content(blob, tenant),
            blob.media_type,
            digest=blob.digest,
            size=blob.size,
            headers=response_headers,
        )

    async def content(self, blob: Blob, tenant: str) -> Content:
        """The blob's bytes; one that is damaged is made again."""
        try:
            return await self._open(blob, tenant)
        except (BlobDamaged, BlobMissing):
            state = await self.blocking.run(tenant, self.store.recover, blob.digest, tenant, self._apart(tenant))
            if state is None:
                raise
            state = await self.finished_task(state, tenant, PATIENCE)
            if not state.ended:
                message = "its file was damaged, and it is being computed again"
                raise Problem("unavailable", message, headers={"Retry-After": "5"}) from None
            return await self._open(blob, tenant)

    async def _open(self, blob: Blob, tenant: str) -> Content:
        """Large ones are compared with their digest once for all who ask meanwhile."""
        if blob.size <= IN_MEMORY:
            if self.store.blobs.remote:
                return Held(await self.blocking.run(tenant, self.store.blobs.read, blob.digest))
            return Held(self.store.blobs.read(blob.digest))
        task = self.opening.get(blob.digest)
        if task is None:
            task = self.opening[blob.digest] = asyncio.create_task(self._compared(blob, tenant))
            task.add_done_callback(lambda _: self.opening.pop(blob.digest))
        return await asyncio.shield(task)

    async def _compared(self, blob: Blob, tenant: str) -> Content:
        if self.store.blobs.remote:
            return await self.blocking.run(tenant, self._filed, blob)
        return await asyncio.to_thread(self._filed, blob)

    def _filed(self, blob: Blob) -> Content:
        with self.store.blobs.open(blob.digest) as file:
            return Filed(file)


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def preferred_wait(request: Request, service: Service, tenant: str = "") -> int | None:
    """Seconds of `Prefer: wait=N` (RFC 7240), at most those that the service grants; None where it is not said, or not
    heeded, as too many requests of the tenant wait already."""
    found = _WAIT.search(",".join(request.headers.getlist("prefer")))
    if found is None or service.waiting[tenant] >= WAITS:
        return None
    return min(int(found[1]), int(service.settings.most_wait))
