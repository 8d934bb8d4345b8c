"""Whether the service lives and is ready, for load balancers without a key, and how it does, for monitors with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool

from planner.api.auth import expect_monitor
from planner.api.descriptions import problems, text
from planner.api.errors import Problem
from planner.api.observe import METRICS_TYPE
from planner.api.respond import document
from planner.api.schemas import Health
from planner.api.service import service_of
from planner.version import __version__

__all__ = ["flat", "router"]

router = APIRouter(tags=["health"])

_ALIVE = Health(status="ok", version=__version__)


@router.get(
    "/healthz",
    operation_id="getHealth",
    summary="Whether the service answers",
    responses={200: {"model": Health}, **problems(keys=False)},
)
async def healthz(request: Request) -> Response:
    """Touches nothing but the event loop."""
    return document(request, _ALIVE)


@router.get(
    "/readyz",
    operation_id="getReadiness",
    summary="Whether the service can take requests",
    responses={200: {"model": Health}, **problems("storage-full", keys=False)},
)
async def readyz(request: Request) -> Response:
    """503 while no worker is at work, or the store cannot be written to."""
    service = service_of(request)
    if service.changes.stopping:
        raise Problem("unavailable", "the service is stopping")
    if not await run_in_threadpool(service.store.leases.workers):
        raise Problem("unavailable", "no worker is at work; requests wait until one is", headers={"Retry-After": "1"})
    await service.expect_writable()
    return document(request, _ALIVE)


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Prometheus metrics",
    responses={200: text("text/plain", "In the text format of Prometheus"), **problems("unauthorised", keys=False)},
    openapi_extra={"security": [{"key": []}]},
)
async def metrics(request: Request) -> Response:
    """They count what all tenants do, so that no tenant's key opens them: `planner keys create --metrics` makes one.
    A service without any key shows them to whoever is on its machine."""
    service = service_of(request)
    await service.look(expect_monitor, request, service)
    counts = await run_in_threadpool(service.store.counts)
    totals = await run_in_threadpool(service.store.totals)
    return Response(service.metrics.text(flat(counts), totals), headers={"content-type": METRICS_TYPE})


def flat(counts: Mapping[str, Any], before: str = "") -> dict[str, float]:
    """Numbers by their names, those of inner mappings joined by underlines."""
    out: dict[str, float] = {}
    for name, value in counts.items():
        if isinstance(value, Mapping):
            out |= flat(value, f"{before}{name}_")
        else:
            out[f"{before}{name}"] = float(value)
    return out
