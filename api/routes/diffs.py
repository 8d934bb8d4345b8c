"""`/v1/diffs/A/B`: what two plans do differently."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response

from planner.api.arguments import IfNoneMatch, PlanId, Prefer
from planner.api.auth import Tenant
from planner.api.computed import PENDING, computed
from planner.api.descriptions import header, problems
from planner.api.errors import COMPUTED
from planner.api.respond import VARY, accepted
from planner.api.service import service_of

__all__ = ["router"]

router = APIRouter(tags=["diffs"])

_FORMS: Final = {"application/json": "json", "text/html": "html"}


@router.get(
    "/v1/diffs/{a}/{b}",
    operation_id="getDiff",
    summary="Two plans compared",
    responses={
        200: {
            "description": "The difference (docs/diff.md)",
            "headers": {"ETag": header("Of these bytes.")},
            "content": {
                "application/json": {"schema": {"type": "object"}},
                "text/html": {"schema": {"type": "string"}},
            },
        },
        202: PENDING,
        304: {"description": "The caller has it"},
        **problems(*COMPUTED, "not-acceptable"),
    },
)
async def get_diff(
    request: Request,
    tenant: Tenant,
    a: PlanId,
    b: PlanId,
    form: Annotated[
        Literal["json", "html"] | None, Query(alias="format", description="Instead of what `Accept` says.")
    ] = None,
    prefer: Prefer = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """JSON, or a page of its own by `Accept: text/html` or `format=html`."""
    service = service_of(request)
    chosen = form or _FORMS[accepted(request, tuple(_FORMS))]
    plans = {side: await service.look(service.store.plan, tenant, plan) for side, plan in (("a", a), ("b", b))}
    inputs = {side: plan.files["plan.json"].digest for side, plan in plans.items()}
    task = service.task(tenant, "diff", inputs, {"form": chosen})
    return await computed(request, service, tenant, task, lambda _: {"vary": f"Accept, {VARY}"})
