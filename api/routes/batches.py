"""`/v1/batches`: one model, sent once, and many requests to plan it."""

from __future__ import annotations

import json
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from planner.api.admission import admitted_together, expect_body
from planner.api.arguments import IdempotencyKey
from planner.api.auth import Tenant, within_rate
from planner.api.descriptions import BINARY, header, problems
from planner.api.errors import Problem
from planner.api.jobs.tasks import Submission
from planner.api.links import job_of
from planner.api.options import PlanQuery
from planner.api.respond import document
from planner.api.schemas import Batch
from planner.api.service import service_of
from planner.api.submission import REFUSALS, webhook_of
from planner.api.uploads import received
from planner.errors import UsageError
from planner.requests.wording import in_keywords

__all__ = ["router"]

router = APIRouter(tags=["plans"])

MOST: Final = 100  # requests of a batch
LONGEST: Final = 2**20  # bytes of them
SHOWN: Final = 20  # fields of which is said what is wrong
PARTS: Final = ("model", "constraints", "requests")
BODY: Final = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {
                    "model": {**BINARY["schema"], "description": "ONNX file; weights are not needed."},
                    "constraints": {
                        "type": "string",
                        "format": "binary",
                        "description": "As `planner search --constraints`; of all requests.",
                    },
                    "requests": {
                        "type": "array",
                        "items": PlanQuery.model_json_schema(),
                        "minItems": 1,
                        "maxItems": MOST,
                        "description": "JSON; each entry has the options of `POST /v1/plans`.",
                    },
                },
                "required": ["model", "requests"],
                "additionalProperties": False,
            },
            "encoding": {"requests": {"contentType": "application/json"}},
        }
    },
}


@router.post(
    "/v1/batches",
    operation_id="createBatch",
    summary="Plan a model for many settings",
    status_code=202,
    responses={
        202: {
            "model": Batch,
            "description": "The jobs, which go on, or have ended where they were answered before",
            "headers": {"Retry-After": header("Seconds to wait before asking again.", "integer")},
        },
        **problems(*REFUSALS),
    },
    openapi_extra={"requestBody": BODY},
)
async def create_batch(request: Request, tenant: Tenant, idempotency_key: IdempotencyKey = None) -> Response:
    """Each request becomes a job like any other.  All are taken, or none: the limits of the tenant count them all."""
    service = service_of(request)
    await expect_body(request, service, tenant, None if idempotency_key is None else f"{idempotency_key} 0")
    async with received(request, service.store.blobs, PARTS) as upload:
        if "requests" not in upload.digests:
            raise _invalid("requests", "the form has no part of this name; expected a JSON list of requests")
        queries = await service.blocking.run(tenant, _queries, upload.take("requests", LONGEST))
        if len(queries) > 1:
            await within_rate(request, service, tenant, len(queries) - 1)
        service.metrics.uploaded.inc(upload.size)
        webhooks = [await webhook_of(request, service, query.webhook) for query, _ in queries]
        submissions = []
        for (query, options), webhook in zip(queries, webhooks, strict=True):
            name = query.name or upload.stem or "model"
            task = service.task(tenant, "plan", upload.digests, {**options, "name": name})
            submissions.append(Submission(task, name, webhook=webhook))
        jobs = await admitted_together(service, tenant, submissions, upload, idempotency_key)
    return document(request, Batch(jobs=[job_of(j) for j in jobs]), status=202, headers={"retry-after": "1"})


def _queries(content: bytes) -> list[tuple[PlanQuery, dict[str, Any]]]:
    """The requests, and the options of their tasks.

    Problem where one is not as documented, UsageError where its options contradict each other."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise _invalid("requests", "expected a JSON list of requests, found no JSON") from None
    if not isinstance(found, list) or not 1 <= len(found) <= MOST:
        count = f"{len(found)} entries" if isinstance(found, list) else "no list"
        raise _invalid("requests", f"expected a list of 1 to {MOST} requests, found {count}")
    out, errors = [], []
    for k, given in enumerate(found):
        at = f"requests.{k}"
        try:
            query = PlanQuery.model_validate(given)
            out.append((query, query.task_options()))
        except ValidationError as e:
            for wrong in e.errors(include_input=False, include_url=False, include_context=False):
                where = ".".join([at, *map(str, wrong["loc"])])
                errors.append({"in": "body", "name": where[:200], "detail": str(wrong["msg"])[:500]})
        except UsageError as e:
            raise UsageError(f"{at}: {in_keywords(str(e))}") from e
        if len(errors) >= SHOWN:
            break
    if errors:
        message = "; ".join(f"{e['name']}: {e['detail']}" for e in errors[:3])
        raise Problem("validation", message, errors=errors[:SHOWN])
    return out


def _invalid(name: str, detail: str) -> Problem:
    return Problem("validation", f"{name}: {detail}", errors=[{"in": "body", "name": name, "detail": detail}])
