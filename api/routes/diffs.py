"""`/v1/diffs/A/B`: what two plans do differently."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Header, Path, Query, Request, Response

from planner.api.auth import Tenant
from planner.api.descriptions import header, problems
from planner.api.errors import COMPUTED
from planner.api.respond import VARY, accepted
from planner.api.routes.artifacts import PENDING, pending, waits
from planner.api.routes.plans import Prefer
from planner.api.service import service_of

__all__ = ["router"]

router = APIRouter(tags=["diffs"])

_FORMS: Final = {"application/json": "json", "text/html": "html"}

Side = Annotated[str, Path(description="Id of a plan.", json_schema_extra={"pattern": "^[0-9a-f]{32}$"})]


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
    a: Side,
    b: Side,
    form: Annotated[
        Literal["json", "html"] | None, Query(alias="format", description="Instead of what `Accept` says.")
    ] = None,
    prefer: Prefer = None,
    if_none_match: Annotated[str | None, Header(description="ETags that the caller has.")] = None,
) -> Response:
    """JSON, or a page of its own by `Accept: text/html` or `format=html`."""
    service = service_of(request)
    chosen = form or _FORMS[accepted(request, tuple(_FORMS))]
    plans = {side: await service.look(service.store.plan, tenant, plan) for side, plan in (("a", a), ("b", b))}
    inputs = {side: plan.files["plan.json"].digest for side, plan in plans.items()}
    state = await service.made(service.task(tenant, "diff", inputs, {"form": chosen}), tenant, waits(request))
    if not state.ended:
        return pending(request, state)
    blob = next(iter(state.result.values()))
    return await service.sent(request, blob, tenant, {"vary": f"Accept, {VARY}"})
