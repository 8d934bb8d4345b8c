"""The FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from planner.api.descriptions import describe, takes_model
from planner.api.edge import Edge
from planner.api.errors import invalid, of_status
from planner.api.jobs.opening import open_store
from planner.api.jobs.shared import shared_secret
from planner.api.jobs.store import Store
from planner.api.limits import Buckets
from planner.api.observe import Metrics
from planner.api.pages import Signer, own_secret
from planner.api.quota import Quotas
from planner.api.rates import SharedBuckets
from planner.api.respond import Packed
from planner.api.routes import routers
from planner.api.service import Service
from planner.api.settings import Settings
from planner.api.spans import spans_of
from planner.api.watch import Changes
from planner.api.webhooks import Deliveries
from planner.version import __version__

__all__ = ["create_app"]


class _Described(FastAPI):
    """An application whose OpenAPI document tells problems, links and examples as well."""

    def openapi(self) -> dict[str, Any]:
        return describe(self)


def create_app(settings: Settings, store: Store | None = None) -> FastAPI:
    """The service on a store; without one, that of the settings' folder.  `app.state.service` has its parts."""
    job_store = store or open_store(settings.data, settings.store, settings.blobs, queue=settings.queue)
    database = job_store.database
    app = _Described(
        title="planner",
        version=__version__,
        docs_url=None,  # it would load its scripts from another site
        redoc_url=None,
        redirect_slashes=False,
        lifespan=_delivering,
    )
    service = Service(
        settings=settings,
        store=job_store,
        changes=Changes(job_store.version, job_store.stamps, job_store.changes),
        metrics=Metrics(),
        buckets=SharedBuckets(settings.rate, database) if database.remote else Buckets(settings.rate),
        signer=Signer(shared_secret(database) if database.remote else own_secret(settings.data)),
        quotas=Quotas(settings.tenant_quota, job_store.used_bytes),
    )
    app.state.service = service
    app.state.packed = Packed(settings.data)
    app.add_exception_handler(HTTPException, _bare)
    app.add_exception_handler(RequestValidationError, _malformed)
    mounted = routers()
    routes = [route for router in mounted for route in router.routes if isinstance(route, APIRoute)]
    uploads = frozenset(route.path for route in routes if takes_model(route))
    app.state.spans = spans_of("planner-api")
    app.add_middleware(
        Edge,
        settings=settings,
        metrics=service.metrics,
        uploads=uploads,
        damaged=service.damaged,
        spans=app.state.spans,
    )
    for router in mounted:
        app.include_router(router)
    app.state.allowed = [(route.path_regex, route.path, route.methods) for route in routes]
    return app


@asynccontextmanager
async def _delivering(app: FastAPI) -> AsyncIterator[None]:
    """Webhooks are sent while the application runs, where it has any, and spans are sent until it has ended."""
    try:
        async with _webhooks(app):
            yield
    finally:
        if app.state.spans is not None:
            await run_in_threadpool(app.state.spans.close)


@asynccontextmanager
async def _webhooks(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    if not service.settings.webhook_hosts:
        yield
        return
    task = asyncio.create_task(Deliveries(service.store, service.settings.webhook_hosts).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _bare(request: Request, e: Exception) -> Response:
    """What the framework refuses, as a problem: the edge answers with it."""
    assert isinstance(e, HTTPException)
    headers: dict[str, str] = dict(e.headers or {})
    if e.status_code == 405:  # the framework names the methods of the first route with this path alone
        found = [(p, allowed) for regex, p, allowed in request.app.state.allowed if regex.match(request.url.path)]
        # Of /v1/jobs/{job_id} and /v1/jobs/{job_id}:cancel, the one that says more.
        most = max((len(p) for p, _ in found), default=0)
        methods = {m for p, allowed in found if len(p) == most for m in allowed}
        headers = {"Allow": ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))}
    raise of_status(e.status_code, str(e.detail), headers)


async def _malformed(request: Request, e: Exception) -> Response:
    assert isinstance(e, RequestValidationError)
    raise invalid([_field(found) for found in e.errors()])


def _field(found: Mapping[str, Any]) -> dict[str, str]:
    """Where it is and what was expected; not what was found, which may be anything."""
    where, *path = found["loc"]
    return {"in": str(where), "name": ".".join(map(str, path))[:200] or str(where), "detail": str(found["msg"])}
