"""`/v1/plans`: a model in, a job that plans it; plans that are there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response

from planner.api.admission import admitted, expect_body
from planner.api.arguments import Cursor, IdempotencyKey, IfNoneMatch, Limit, PlanId, Prefer
from planner.api.auth import Tenant
from planner.api.descriptions import header, link, model_body, problems
from planner.api.errors import Problem
from planner.api.links import entry_of
from planner.api.options import PlanQuery, refuse_repeated
from planner.api.pages import next_link
from planner.api.respond import document, matches
from planner.api.schemas import Plans
from planner.api.service import service_of
from planner.api.submission import ANSWERS, REFUSALS, submitted, webhook_of
from planner.api.uploads import received

__all__ = ["router"]

router = APIRouter(tags=["plans"])


@router.post(
    "/v1/plans",
    operation_id="createPlan",
    summary="Plan a model",
    status_code=202,
    responses={
        **ANSWERS,
        **problems(*REFUSALS),
    },
    openapi_extra={"requestBody": model_body(required=True, constraints=True)},
)
async def create_plan(
    request: Request,
    tenant: Tenant,
    query: Annotated[PlanQuery, Query()],
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
) -> Response:
    """The body is the ONNX file, or a form with `model` and perhaps `constraints`.  Requests that ask the same share
    one computation, and one that was answered before is answered at once, by the job of then."""
    service = service_of(request)
    refuse_repeated((name for name, _ in request.query_params.multi_items()), PlanQuery)
    options = query.task_options()
    webhook = await webhook_of(request, service, query.webhook)
    await expect_body(request, service, tenant, idempotency_key)
    async with received(request, service.store.blobs, ("model", "constraints")) as upload:
        name = query.name or upload.stem or "model"
        task = service.task(tenant, "plan", upload.digests, {**options, "name": name})
        service.metrics.uploaded.inc(upload.size)
        job = await admitted(service, tenant, task, upload, name, idempotency_key, webhook)
    return await submitted(request, service, job)


@router.get(
    "/v1/plans",
    operation_id="listPlans",
    summary="Plans, the newest first",
    responses={
        200: {
            "model": Plans,
            "headers": {"Link": header('`rel="next"`, where there are more.', required=False)},
            "links": {"next": link("listPlans", "The next page.", cursor="$response.body#/next")},
        },
        **problems("cursor-invalid", "validation"),
    },
)
async def list_plans(request: Request, tenant: Tenant, limit: Limit = 50, cursor: Cursor = None) -> Response:
    service = service_of(request)
    after = service.signer.after(f"plans {tenant}", cursor)
    found = await service.look(service.store.plans, tenant, limit + 1, after)
    more = service.signer.seal(f"plans {tenant}", found[limit - 1].cursor) if len(found) > limit else None
    page = Plans(items=[entry_of(p) for p in found[:limit]], next=more)
    return document(request, page, headers=next_link(request.url, more))


@router.get(
    "/v1/plans/{plan_id}",
    operation_id="getPlan",
    summary="A plan, as plan.json",
    responses={
        200: {
            "description": "The plan, byte for byte as `planner search` writes it (docs/plan-format.md)",
            "content": {"application/json": {"schema": {"type": "object"}}},
            "headers": {"ETag": header("Of these bytes.")},
        },
        304: {"description": "The caller has it"},
        **problems("not-found", "validation", "input-lost"),
    },
)
async def get_plan(
    request: Request,
    tenant: Tenant,
    plan_id: PlanId,
    if_none_match: IfNoneMatch = None,
) -> Response:
    service = service_of(request)
    blob = (await service.look(service.store.plan, tenant, plan_id)).files["plan.json"]
    return await service.sent(request, blob, tenant)


@router.delete(
    "/v1/plans/{plan_id}",
    operation_id="forgetPlan",
    summary="Forget a plan",
    status_code=204,
    response_class=Response,
    responses={
        204: {"description": "It is gone"},
        **problems("origin-forbidden", "not-found", "precondition-failed", "validation", "storage-full"),
    },
)
async def forget_plan(
    request: Request,
    tenant: Tenant,
    plan_id: PlanId,
    if_match: Annotated[str | None, Header(description="Only where the plan has one of these ETags.")] = None,
) -> Response:
    service = service_of(request)
    blob = (await service.look(service.store.plan, tenant, plan_id)).files["plan.json"]
    if if_match is not None and not matches(if_match, blob.digest[:32]):
        raise Problem("precondition-failed", f'the plan\'s ETag is "{blob.digest[:32]}"')
    await service.blocking.run(tenant, service.store.forget, tenant, plan_id)
    service.quotas.forget(tenant)
    return Response(status_code=204)
