"""What each kind of task does.  Runs in a child."""

from __future__ import annotations

import importlib
from typing import Any, Final, Protocol

from planner.api.jobs.work import JobInput, JobResult

__all__ = ["Tell", "execute"]

# kind → module and function, imported when asked for (the fork server has them already)
_FUNCTIONS: Final = {
    "plan": ("planner.api.jobs.searches", "search"),
    "explanation": ("planner.api.jobs.explanations", "explain"),
    "artifact": ("planner.api.jobs.artifacts", "artifact"),
    "diff": ("planner.api.jobs.artifacts", "diff"),
    "transfer": ("planner.api.jobs.transfers", "transfer"),
    "evaluation": ("planner.api.jobs.evaluations", "evaluate"),
}


class Tell(Protocol):
    """Who hears how far the work is: as `planner.requests.watch.Watch`."""

    def phase(self, name: Any) -> None: ...
    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None: ...
    def say(self, line: str) -> None: ...


def execute(work: JobInput, tell: Tell) -> JobResult:
    """PlannerError as of the work; BlobMissing, BlobDamaged of an input."""
    module, name = _FUNCTIONS[work.kind]
    outcome: JobResult = getattr(importlib.import_module(module), name)(work, tell)
    return outcome
