"""JSON documents of the service.  Times are RFC 3339 in UTC, sizes bytes, durations seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Artifact",
    "Artifacts",
    "Batch",
    "FieldError",
    "Hardware",
    "Health",
    "Job",
    "Jobs",
    "Pending",
    "PlanEntry",
    "Plans",
    "ProblemDocument",
    "Progress",
    "Session",
    "SessionRequest",
]

Id = Annotated[str, Field(json_schema_extra={"pattern": "^[0-9A-Za-z_-]{1,64}$"})]


Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T09:30:00.125Z"])]


class FieldError(BaseModel):
    """One field that is not as documented."""

    model_config = ConfigDict(populate_by_name=True)

    where: Annotated[Literal["query", "path", "header", "body", "cookie"], Field(alias="in")]
    name: str
    detail: str


class ProblemDocument(BaseModel):
    """RFC 9457.  `type` is one of those listed in docs/service.md and never changes; further members depend on it."""

    model_config = ConfigDict(extra="allow")

    type: Annotated[str, Field(pattern="^urn:planner:problem:[a-z-]+$")]
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: Annotated[str | None, Field(description="`urn:planner:request:ID`, where it answers a request.")] = None
    errors: list[FieldError] | None = None


class Progress(BaseModel):
    """How far the search is; what is not known yet is left out."""

    model_config = ConfigDict(extra="allow")

    phase: str | None = None
    incumbent_s: Annotated[float | None, Field(description="Objective of the best plan so far.")] = None
    bound_s: Annotated[float | None, Field(description="No plan is below it.")] = None
    gap: float | None = None
    seconds: float | None = None
    paused: Annotated[bool | None, Field(description="Whether it stands still while others have their turn.")] = None


class Job(BaseModel):
    """One request for a computation.  `links` are paths on this service."""

    id: Id
    kind: Literal["plan", "evaluation", "explanation"]
    name: str
    status: Literal["queued", "running", "succeeded", "failed", "cancelled"]
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    progress: Progress
    plan: Annotated[str | None, Field(description="Id of the plan, once there is one.")]
    error: Annotated[ProblemDocument | None, Field(description="Why there is no result.")]
    summary: Annotated[dict[str, Any], Field(description="Figures of the result; of an evaluation, all of it.")]
    options: dict[str, Any]
    attempts: Annotated[int, Field(description="How often it was begun; more than once after a crash.")]
    links: dict[str, str]


class Jobs(BaseModel):
    """A page of jobs, the newest first."""

    items: list[Job]
    next: Annotated[str | None, Field(description="The `cursor` of the next page.")]


class Batch(BaseModel):
    """The jobs of a batch, in the order of its requests."""

    jobs: list[Job]


class PlanEntry(BaseModel):
    id: Id
    name: str
    created_at: Moment
    summary: dict[str, Any]
    options: dict[str, Any]
    links: dict[str, str]


class Plans(BaseModel):
    """A page of plans, the newest first."""

    items: list[PlanEntry]
    next: Annotated[str | None, Field(description="The `cursor` of the next page.")]


class Artifact(BaseModel):
    """`size` in bytes where it is made already; the others are made when they are asked for."""

    name: str
    media_type: str
    size: int | None
    href: str


class Artifacts(BaseModel):
    plan: Id
    items: list[Artifact]


class Pending(BaseModel):
    """It is being made: ask again after `Retry-After` seconds."""

    status: Literal["queued", "running"]
    progress: Progress


class Hardware(BaseModel):
    """A machine that can be planned for; memory in bytes per device, None where the profile sets no limit."""

    name: str
    description: str
    devices_per_server: int | None
    memory_bytes: int | None


class Health(BaseModel):
    status: str
    version: str


class SessionRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: Annotated[str, Field(min_length=1, max_length=200, description="The secret of `planner keys create`.")]


class Session(BaseModel):
    """Who is asking; `keys` says whether the service asks for keys at all."""

    tenant: str
    keys: bool
