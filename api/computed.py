"""What is computed from plans when it is first requested: artifacts, explanations, comparisons, transfers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fastapi import Request, Response

from planner.api.descriptions import header
from planner.api.jobs.blobs import Blob
from planner.api.jobs.records import Plan, TaskState
from planner.api.jobs.tasks import Task
from planner.api.links import progress_of
from planner.api.respond import document
from planner.api.schemas import Pending
from planner.api.service import PATIENCE, Service, preferred_wait
from planner.requests.record_file import RECORD_FILE

__all__ = ["PENDING", "computed", "explanation_of", "sources"]

PENDING: Final = {
    "model": Pending,
    "description": "It is being made",
    "headers": {"Retry-After": header("Seconds to wait before asking again.", "integer")},
}


async def computed(
    request: Request,
    service: Service,
    tenant: str,
    task: Task,
    headers: Callable[[Blob], Mapping[str, str]] = lambda _: {},
) -> Response:
    """The file that the task results in, with these headers; its progress where that takes longer than the caller waits
    for it."""
    preferred = preferred_wait(request, service)
    state = await service.made(task, tenant, PATIENCE if preferred is None else preferred)
    if not state.ended:
        return _pending(request, state)
    blob = next(iter(state.result.values()))
    return await service.sent(request, blob, tenant, dict(headers(blob)))


def _pending(request: Request, state: TaskState) -> Response:
    body = Pending(status="running" if state.status == "running" else "queued", progress=progress_of(state.progress))
    return document(request, body, status=202, headers={"retry-after": "1"})


def sources(plan: Plan, *, model: bool = True, record: bool = False) -> dict[str, str]:
    """Digests of what artifacts are made of: without the model, which may be lost, where it is not read; with the
    `record` of the search where it is shown."""
    names = ["plan.json", *(["model.onnx"] if model else []), *([RECORD_FILE] if record else [])]
    return {n: plan.files[n].digest for n in names if n in plan.files}


def explanation_of(service: Service, plan: Plan, operator: str | None, alternatives: int) -> Task:
    """The task of an explanation, which is one whichever route requests it."""
    options = {"operator": operator, "alternatives": alternatives}
    return service.task(plan.tenant, "explanation", sources(plan), options)
