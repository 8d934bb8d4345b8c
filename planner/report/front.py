"""Step time and memory of what a search has found, and which of it nothing beats in both."""

from __future__ import annotations

from typing import Any

from planner.planning.document import PlanDocument
from planner.report.record import PointDocument, SearchRecord

__all__ = ["front", "unbeaten"]


def unbeaten(points: list[tuple[float, int]]) -> list[bool]:
    """Of (seconds, bytes) each: whether no other one is better in one and as good in the other."""
    return [not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points) for p in points]


def front(plan: PlanDocument, record: SearchRecord | None) -> list[dict[str, Any]] | None:
    """The points of the record by memory, `own` that of the plan; None where there are fewer than two."""
    if record is None:
        return None
    own = plan.cost.step_time_s, plan.cost.peak_memory_bytes
    points = sorted(record.points, key=lambda p: (p.peak_memory_bytes, p.step_time_s))
    if len({_at(p) for p in points} | {own}) < 2:
        return None
    best = unbeaten([_at(p) for p in points])
    return [p.model_dump() | {"best": b, "own": _at(p) == own} for p, b in zip(points, best, strict=True)]


def _at(p: PointDocument) -> tuple[float, int]:
    return p.step_time_s, p.peak_memory_bytes
