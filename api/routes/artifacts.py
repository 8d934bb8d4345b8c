"""`/v1/plans/ID/artifacts`: what is made of a plan, by name."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from planner.api.arguments import IfNoneMatch, PlanId, Prefer
from planner.api.auth import Tenant
from planner.api.computed import PENDING, computed, explanation_of, sources
from planner.api.descriptions import BINARY, header, link, problems
from planner.api.errors import COMPUTED, Problem
from planner.api.jobs.blobs import Blob
from planner.api.jobs.errors import BlobMissing
from planner.api.jobs.records import Plan
from planner.api.jobs.tasks import Task
from planner.api.respond import document
from planner.api.schemas import Artifact, Artifacts
from planner.api.service import Service, service_of
from planner.emit import TARGETS
from planner.requests.record_file import RECORD_FILE

__all__ = ["router"]

router = APIRouter(tags=["artifacts"])

MADE: Final = {
    "report.html": "text/html",
    "report.json": "application/json",
    "trace.json": "application/json",
    "explain.json": "application/json",
    **{f"{target}.zip": "application/zip" for target in TARGETS},
}
RECORDED: Final = ("report.html", "report.json")  # which show how the search went
FOUND: Final = {
    "plan.json": "application/json",
    "search.json": "application/json",
    RECORD_FILE: "application/json",
    "summary.txt": "text/plain",
    "model.onnx": "application/octet-stream",
}


@router.get(
    "/v1/plans/{plan_id}/artifacts",
    operation_id="listArtifacts",
    summary="The files that can be made of a plan",
    responses={
        200: {
            "model": Artifacts,
            "links": {
                "first": link(
                    "getArtifact",
                    "The first of them.",
                    plan_id="$response.body#/plan",
                    name="$response.body#/items/0/name",
                )
            },
        },
        **problems("not-found", "validation"),
    },
)
async def list_artifacts(request: Request, tenant: Tenant, plan_id: PlanId) -> Response:
    service = service_of(request)
    plan = await service.look(service.store.plan, tenant, plan_id)
    at = f"/v1/plans/{plan_id}/artifacts"
    names = {n: b.media_type for n, b in plan.files.items()} | MADE
    items = [
        Artifact(
            name=name,
            media_type=media,
            size=plan.files[name].size if name in plan.files else None,
            href=f"{at}/{name}",
        )
        for name, media in names.items()
    ]
    return document(request, Artifacts(plan=plan_id, items=items))


@router.get(
    "/v1/plans/{plan_id}/artifacts/{name}",
    operation_id="getArtifact",
    summary="A file that is made of a plan",
    responses={
        200: {
            "description": "The file",
            "headers": {"ETag": header("Of these bytes.")},
            "content": {
                "application/json": {"schema": {}},
                "text/html": {"schema": {"type": "string"}},
                "text/plain": {"schema": {"type": "string"}},
                "application/zip": dict(BINARY),
                "application/octet-stream": dict(BINARY),
            },
        },
        202: PENDING,
        304: {"description": "The caller has it"},
        **problems(*COMPUTED, "target-refuses", "usage"),
    },
)
async def get_artifact(
    request: Request,
    tenant: Tenant,
    plan_id: PlanId,
    name: str,
    prefer: Prefer = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Waits for what has to be made first: 20 s, or as long as `Prefer: wait=N` says."""
    service = service_of(request)
    plan = await service.look(service.store.plan, tenant, plan_id)

    def headers(blob: Blob) -> dict[str, str]:
        return {"content-disposition": f'{_shown(blob.media_type)}; filename="{plan.name}-{name}"'}

    if name in plan.files:
        blob = plan.files[name]
        return await service.sent(request, blob, tenant, headers(blob))
    if name in MADE:
        try:
            return await computed(request, service, tenant, _task(service, plan, name), headers)
        except BlobMissing:
            if name not in RECORDED:
                raise
            return await computed(request, service, tenant, _task(service, plan, name, record=False), headers)
    raise Problem("not-found", f"artifact {name[:100]!r}: expected one of {', '.join((*FOUND, *MADE))}")


def _task(service: Service, plan: Plan, name: str, *, record: bool = True) -> Task:
    """What makes the file; a report, which is made without it too, of the `record` of the search."""
    if name == "explain.json":
        return explanation_of(service, plan, None, 3)
    target = TARGETS.get(name.removesuffix(".zip"))
    inputs = sources(plan, model=target is not None and "model" in target.needs, record=record and name in RECORDED)
    return service.task(plan.tenant, "artifact", inputs, {"name": name})


def _shown(media_type: str) -> str:
    return "attachment" if media_type in ("application/zip", "application/octet-stream") else "inline"
