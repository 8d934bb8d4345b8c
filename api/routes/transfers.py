"""`/v1/transfers/A/B`: who sends what to whom when running devices change from a plan to another; no weights."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response

from planner.api.arguments import IfNoneMatch, PlanId, Prefer
from planner.api.auth import Tenant
from planner.api.computed import PENDING, computed
from planner.api.descriptions import header, problems
from planner.api.errors import COMPUTED
from planner.api.service import service_of

__all__ = ["router"]

router = APIRouter(tags=["transfers"])


@router.get(
    "/v1/transfers/{a}/{b}",
    operation_id="getTransfer",
    summary="The state of a training, from one plan to another",
    responses={
        200: {
            "description": "Messages, the device of each rank, and what is lost (docs/checkpoints.md)",
            "headers": {"ETag": header("Of these bytes.")},
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
        202: PENDING,
        304: {"description": "The caller has it"},
        **problems(*COMPUTED, "usage"),
    },
)
async def get_transfer(
    request: Request,
    tenant: Tenant,
    a: PlanId,
    b: PlanId,
    lost: Annotated[
        str,
        Query(
            description="Ranks of A that are gone, with commas between them.", pattern=r"^(\d{1,7}(,\d{1,7})*)?$",
            max_length=10_000,
        ),
    ] = "",
    optimizer: Annotated[
        Literal["adam", "momentum", "sgd"], Query(description="Whose state moves with the parameters.")
    ] = "adam",
    prefer: Prefer = None,
    if_none_match: IfNoneMatch = None,
) -> Response:  # fmt: skip
    """As `planner checkpoint plan --from A --to B --json`."""
    service = service_of(request)
    plans = {side: await service.look(service.store.plan, tenant, plan) for side, plan in (("a", a), ("b", b))}
    inputs = {side: plan.files["plan.json"].digest for side, plan in plans.items()}
    options = {"lost": sorted({int(r) for r in lost.split(",") if r}), "optimizer": optimizer}
    return await computed(request, service, tenant, service.task(tenant, "transfer", inputs, options))
