"""`/v1/plans`: a model in, a job that plans it; plans that are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response

from planner.api.admission import admitted, expect_body
from planner.api.auth import Tenant, mark_of
from planner.api.descriptions import header, link, model_body, problems
from planner.api.errors import Problem
from planner.api.jobs.records import JobRecord
from planner.api.links import entry_of, job_of
from planner.api.options import PlanQuery, refuse_repeated
from planner.api.pages import next_link
from planner.api.respond import document, matches
from planner.api.schemas import Job, Plans
from planner.api.service import Service, preferred_wait, service_of
from planner.api.uploads import received
from planner.api.webhooks import checked

__all__ = [
    "ANSWERS",
    "JOB_LINKS",
    "PLAN_LINKS",
    "REFUSALS",
    "Cursor",
    "IdempotencyKey",
    "Limit",
    "PlanId",
    "Prefer",
    "router",
    "submitted",
    "webhook_of",
]

router = APIRouter(tags=["plans"])

PlanId = Annotated[str, Path(description="Id of a plan.", json_schema_extra={"pattern": "^[0-9a-f]{32}$"})]
Limit = Annotated[int, Query(ge=1, le=200, description="Entries of a page.")]
Cursor = Annotated[str | None, Query(description="`next` of the page before.", max_length=500)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=200,
        pattern=r"^[!-~]+$",
        description="Sent again with the same request, the answer is the same job.",
    ),
]
Prefer = Annotated[
    str | None,
    Header(description="`wait=N`: answer once the job has ended, or after N seconds.", examples=["wait=30"]),
]

JOB_LINKS = {
    "job": link("getJob", "The job.", job_id="$response.body#/id"),
    "events": link("getJobEvents", "Its events.", job_id="$response.body#/id"),
    "cancel": link("cancelJob", "Ends it with the best plan so far.", job_id="$response.body#/id"),
}
PLAN_LINKS = {
    "plan": link("getPlan", "Its plan.", plan_id="$response.body#/plan"),
    "artifacts": link("listArtifacts", "Files made of its plan.", plan_id="$response.body#/plan"),
}
_HEADERS = {"Location": header("The job."), "Preference-Applied": header("`wait=N`, where it was.", required=False)}
ANSWERS: Final[Mapping[int | str, dict[str, Any]]] = {
    200: {"model": Job, "description": "The job, ended", "headers": _HEADERS, "links": JOB_LINKS | PLAN_LINKS},
    202: {
        "model": Job,
        "description": "The job, which goes on",
        "headers": _HEADERS | {"Retry-After": header("Seconds to wait before asking again.", "integer")},
        "links": JOB_LINKS,
    },
}


# What may be said to whoever sends a model.
REFUSALS: Final = (
    *("origin-forbidden", "body-timeout", "too-large", "unsupported-media-type", "validation", "usage"),
    *("idempotency-key-reused", "input-lost", "queue-full", "quota-exceeded", "storage-full"),
)


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


async def webhook_of(request: Request, service: Service, url: str | None) -> tuple[str, str] | None:
    """URL and secret of the webhook that a request asks for.  Problem where it may not have it."""
    if url is None:
        return None
    secret = await service.look(mark_of, request, service)
    if secret is None:
        raise Problem("usage", "webhook: it is signed by the key of the request, and the service has no keys")
    return checked(url, service.settings.webhook_hosts), secret


async def submitted(request: Request, service: Service, job: JobRecord) -> Response:
    """The job, waited for where the caller prefers that."""
    headers = {"location": f"/v1/jobs/{job.id}"}
    wait = preferred_wait(request, service, job.tenant)
    if wait is not None:
        job = await service.finished_job(job, wait)
        headers["preference-applied"] = f"wait={wait}"
    if wait is not None and job.ended:
        return document(request, job_of(job), headers=headers)
    return document(request, job_of(job), status=202, headers=headers | {"retry-after": "1"})


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
    if_none_match: Annotated[str | None, Header(description="ETags that the caller has.")] = None,
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
