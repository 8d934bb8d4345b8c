"""What the store hands out.  Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.api.jobs.blobs import Blob

__all__ = ["ENDED", "Claim", "Event", "JobRecord", "Key", "Plan", "Status", "Submitted", "TaskState"]

Status = Literal["queued", "running", "succeeded", "failed", "cancelled"]
ENDED: frozenset[str] = frozenset(("succeeded", "failed", "cancelled"))


@dataclass(frozen=True, slots=True)
class TaskState:
    """How far a task is, and its result by name once it succeeded (or was cancelled with something in hand).

    `error` is a problem document (type, title, status, detail, …); `progress` has phase, incumbent_s, bound_s, gap,
    seconds, as far as known; `attempts` counts how often it was begun."""

    id: int
    kind: str
    status: Status
    progress: Mapping[str, Any]
    result: Mapping[str, Blob]
    summary: Mapping[str, Any]
    error: Mapping[str, Any] | None
    attempts: int

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A tenant's request.  `plan`: id of its plan, once there is one; `task` stays inside the service."""

    id: str
    tenant: str
    name: str
    kind: str
    status: Status
    created_at: float
    started_at: float | None
    finished_at: float | None
    progress: Mapping[str, Any]
    plan: str | None
    error: Mapping[str, Any] | None
    summary: Mapping[str, Any]
    options: Mapping[str, Any]
    attempts: int
    task: int

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True, slots=True)
class Submitted:
    """`created` is False where an idempotency key named a job that was there."""

    job: JobRecord
    created: bool


@dataclass(frozen=True, slots=True)
class Event:
    """`seq` grows by 1 from event to event: from 1, or from anywhere where others had begun the task.  Types: queued,
    started, phase, progress, message, restarted, and at last one of
    succeeded, failed, cancelled."""

    seq: int
    type: str
    data: Mapping[str, Any]
    at: float

    @property
    def last(self) -> bool:
        return self.type in ENDED


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan that a tenant has: `files` are plan.json, search.json, history.json, summary.txt, model.onnx; not
    every plan has history.json or model.onnx.

    `cursor` goes into `Store.plans(after=…)`."""

    id: str
    tenant: str
    name: str
    created_at: float
    files: Mapping[str, Blob]
    summary: Mapping[str, Any]
    options: Mapping[str, Any]
    cursor: str


@dataclass(frozen=True, slots=True)
class Key:
    """An API key, but for its secret."""

    id: str
    tenant: str
    name: str
    created_at: float
    revoked_at: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that a worker holds; `token` is of this holding alone, `tenant` the one whose turn it was."""

    task: int
    token: int
    kind: str
    lane: int
    inputs: Mapping[str, str]
    options: Mapping[str, Any]
    attempt: int
    leased_until: float
    tenant: str = ""
