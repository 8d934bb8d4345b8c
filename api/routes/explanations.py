"""`/v1/plans/ID/explanation`: why the plan is as it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from planner.api.arguments import IfNoneMatch, PlanId, Prefer
from planner.api.auth import Tenant
from planner.api.computed import PENDING, computed, explanation_of
from planner.api.descriptions import header, problems
from planner.api.errors import COMPUTED
from planner.api.service import service_of

__all__ = ["router"]

router = APIRouter(tags=["explanations"])


@router.get(
    "/v1/plans/{plan_id}/explanation",
    operation_id="getExplanation",
    summary="What the plan's choices cost, and their best alternatives",
    responses={
        200: {
            "description": "The explanation (docs/explain.md)",
            "headers": {"ETag": header("Of these bytes.")},
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        202: PENDING,
        304: {"description": "The caller has it"},
        **problems(*COMPUTED, "usage", "cannot-fit", "no-plan"),
    },
)
async def get_explanation(
    request: Request,
    tenant: Tenant,
    plan_id: PlanId,
    operator: Annotated[
        str | None, Query(min_length=1, max_length=1000, description="Of this operator; default: of the whole plan.")
    ] = None,
    alternatives: Annotated[int, Query(ge=1, le=20, description="How many of the best.")] = 3,
    prefer: Prefer = None,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """Every alternative is searched again with it pinned: this may take as long as some searches."""
    service = service_of(request)
    plan = await service.look(service.store.plan, tenant, plan_id)
    return await computed(request, service, tenant, explanation_of(service, plan, operator, alternatives))
