"""Spans of what children have worked on, sent by their worker once they have ended."""

from __future__ import annotations

import time

from planner.api.jobs.slot import Slot
from planner.api.jobs.store import Store
from planner.api.spans import Spans

__all__ = ["send_span"]


def send_span(spans: Spans | None, store: Store, slot: Slot) -> None:
    """One attempt, in the trace of the request for it."""
    if spans is None:
        return
    ended = time.time()
    requests = store.traces.of(slot.claim.task)
    spans.task(
        slot.claim.kind,
        [(r.parent, r.at) for r in requests],
        ended - (time.monotonic() - slot.child.started),
        ended,
        slot.hearing.marks,
        {
            "planner.task": slot.claim.task,
            "planner.jobs": [r.job for r in requests],
            "planner.attempt": slot.claim.attempt,
            "planner.outcome": slot.outcome,
            "planner.cpu_s": slot.metered_s,
            "planner.pauses": slot.spells.pauses,
        },
        failed=slot.outcome not in ("result", ""),
    )
