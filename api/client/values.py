"""What the service answers with, as values.  Durations are seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

__all__ = ["ENDED", "Artifact", "Event", "Hardware", "JobState", "PlanEntry", "Progress"]

ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is; None where that is not known yet."""

    phase: str | None = None
    incumbent_s: float | None = None  # objective of the best plan so far
    bound_s: float | None = None  # no plan is below it
    gap: float | None = None
    seconds: float | None = None
    paused: bool | None = None  # it stands still while others have their turn

    def updated(self, data: Mapping[str, Any]) -> Progress:
        """With what an event says."""
        nested = data.get("progress")
        found = nested if isinstance(nested, Mapping) else data
        known = {f.name: found[f.name] for f in fields(self) if found.get(f.name) is not None}
        return replace(self, **known) if known else self


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job's stream; `id` is where the stream may be taken up again."""

    id: str
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it was when the service was last asked."""

    id: str
    kind: str
    name: str
    status: str
    progress: Progress
    plan: str | None
    error: Mapping[str, Any] | None
    summary: Mapping[str, Any]
    document: Mapping[str, Any] = field(repr=False)  # all that the service said

    @property
    def ended(self) -> bool:
        return self.status in ENDED

    @classmethod
    def of(cls, d: Mapping[str, Any]) -> JobState:
        return cls(
            id=str(d["id"]),
            kind=str(d.get("kind", "plan")),
            name=str(d.get("name", "")),
            status=str(d["status"]),
            progress=Progress().updated(d.get("progress") or {}),
            plan=d.get("plan"),
            error=d.get("error"),
            summary=d.get("summary") or {},
            document=d,
        )


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A plan that this key may see."""

    id: str
    name: str
    created_at: datetime  # UTC
    summary: Mapping[str, Any]

    @classmethod
    def of(cls, d: Mapping[str, Any]) -> PlanEntry:
        return cls(str(d["id"]), str(d.get("name", "")), _moment(d.get("created_at")), d.get("summary") or {})


def _moment(text: Any) -> datetime:
    """RFC 3339, with its zone."""
    return datetime.fromisoformat(str(text))


@dataclass(frozen=True, slots=True)
class Artifact:
    """Something that is made of a plan; `size` None where it is made only when asked for."""

    name: str
    media_type: str
    size: int | None

    @classmethod
    def of(cls, d: Mapping[str, Any]) -> Artifact:
        return cls(str(d["name"]), str(d.get("media_type", "application/octet-stream")), d.get("size"))


@dataclass(frozen=True, slots=True)
class Hardware:
    """A machine that can be planned for; `memory_bytes` per device, None where the profile sets no limit."""

    name: str
    description: str
    devices_per_server: int | None
    memory_bytes: int | None

    @classmethod
    def of(cls, d: Mapping[str, Any]) -> Hardware:
        return cls(str(d["name"]), str(d.get("description", "")), d.get("devices_per_server"), d.get("memory_bytes"))
