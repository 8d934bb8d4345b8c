"""Who hears how far a search is: a terminal, or the service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from planner.requests.values import progress_to
from planner.search.control import Report
from planner.status import show_progress

__all__ = ["Lines", "Phase", "Silent", "Watch", "reports_in_seconds"]

Phase = Literal["import", "search", "write"]
EVERY = 0.5  # seconds between two lines of progress


class Watch(Protocol):
    """Called from the searching thread, and `progress` from its solvers' threads as well."""

    def phase(self, name: Phase) -> None:
        """What begins now."""

    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None:
        """Objective of the best plan so far and the proven bound, after so many seconds of searching."""

    def say(self, line: str) -> None:
        """What is being done, in words."""


@dataclass(slots=True)
class Lines:
    """Writes lines to standard error, where they do not disturb the result; of the progress now and then one."""

    shown: float = -EVERY

    def phase(self, name: Phase) -> None:
        """The lines speak for themselves."""

    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None:
        figures = f"objective {incumbent_s:.6g} s, bound {bound_s:.6g} s, gap {gap:.2%}"
        if show_progress(figures) or (seconds < self.shown + EVERY and gap > 0):
            return
        self.shown = seconds
        self.say(f"after {seconds:.1f} s: {figures}")

    def say(self, line: str) -> None:
        progress_to(quiet=False)(line)


@dataclass(frozen=True, slots=True)
class Silent:
    """Hears all, and says nothing."""

    def phase(self, name: Phase) -> None: ...

    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None: ...

    def say(self, line: str) -> None: ...


def reports_in_seconds(watch: Watch, unit_s: float) -> Callable[[Report], None]:
    """What a solver reports in units of cost, as progress in seconds, once there is a plan."""

    def report(r: Report) -> None:
        if r.incumbent is not None and r.gap is not None:
            watch.progress(r.incumbent * unit_s, (r.bound or 0) * unit_s, r.gap, r.seconds)

    return report
