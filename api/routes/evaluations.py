"""`/v1/evaluations`: what a configuration that the caller names costs, without a search."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from planner.api.admission import admitted, expect_body
from planner.api.arguments import IdempotencyKey, Prefer
from planner.api.auth import Tenant
from planner.api.descriptions import model_body, problems
from planner.api.errors import Problem
from planner.api.options import EvaluationQuery, refuse_repeated
from planner.api.service import service_of
from planner.api.submission import ANSWERS, REFUSALS, submitted, webhook_of
from planner.api.uploads import Upload, received
from planner.errors import UsageError

__all__ = ["router"]

router = APIRouter(tags=["evaluations"])


@router.post(
    "/v1/evaluations",
    operation_id="createEvaluation",
    summary="Price a configuration, or a plan on another machine",
    status_code=202,
    responses={
        **ANSWERS,
        **problems("not-found", *REFUSALS),
    },
    openapi_extra={"requestBody": model_body(required=False, constraints=False)},
)
async def create_evaluation(
    request: Request,
    tenant: Tenant,
    query: Annotated[EvaluationQuery, Query()],
    idempotency_key: IdempotencyKey = None,
    prefer: Prefer = None,
) -> Response:
    """With `strategy`, the body is the model.  With `plan` there is no body: the plan's model is kept.  The evaluation
    is the job's `summary` once it has ended."""
    service = service_of(request)
    refuse_repeated((name for name, _ in request.query_params.multi_items()), EvaluationQuery)
    options = query.task_options()
    webhook = await webhook_of(request, service, query.webhook)
    if query.plan is None:
        headers = request.headers
        if headers.get("content-length", "0") == "0" and not {"content-type", "transfer-encoding"} & set(headers):
            raise UsageError("strategy: send the model in the body")
        await expect_body(request, service, tenant, idempotency_key)
        async with received(request, service.store.blobs, ("model",)) as upload:
            name = query.name or upload.stem or "model"
            task = service.task(tenant, "evaluation", upload.digests, {**options, "name": name})
            service.metrics.uploaded.inc(upload.size)
            job = await admitted(service, tenant, task, upload, name, idempotency_key, webhook)
    else:
        plan = await service.look(service.store.plan, tenant, query.plan)
        if "model.onnx" not in plan.files:
            raise Problem("usage", "the plan's model was not kept; plan the model again, or send it with a strategy")
        inputs = {"model": plan.files["model.onnx"].digest, "plan": plan.files["plan.json"].digest}
        name = query.name or plan.name
        task = service.task(tenant, "evaluation", inputs, {**options, "name": name})
        job = await admitted(service, tenant, task, Upload(), name, idempotency_key, webhook)
    return await submitted(request, service, job)
