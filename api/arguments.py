"""Arguments that several routes take: ids of plans, places in lists, and headers."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Path, Query

__all__ = ["Cursor", "IdempotencyKey", "IfNoneMatch", "Limit", "PlanId", "Prefer"]

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
IfNoneMatch = Annotated[str | None, Header(description="ETags that the caller has.")]
