"""The anytime contract: what every solver is handed, and where it leaves the best it knows.

A solver calls `stopped` often (at least every 0.1 s of work), `offer`s every better choice the moment it has one and
`prove`s every better bound.  Whoever started it may set `cancel` at any time and takes `best` and `bound` from here.
With neither a time limit nor a cancellation the run depends on work alone, so it is reproducible.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.certificates.certificate import Proof

__all__ = ["Control", "Report"]


@dataclass(frozen=True, slots=True)
class Report:
    """One step of the anytime stream: the cost of the best choice so far (None: none yet), the best proven lower
    bound (None: none yet), who improved it, and when, in seconds from the start."""

    incumbent: int | None
    bound: int | None
    solver: str
    seconds: float

    @property
    def gap(self) -> float | None:
        """(incumbent - bound) / incumbent; None while either is missing."""
        if self.incumbent is None or self.bound is None:
            return None
        return max(0.0, (self.incumbent - self.bound) / abs(self.incumbent)) if self.incumbent else 0.0


@dataclass(eq=False)
class Control:
    """`time_limit` in seconds from construction (None: limits in work alone); `report` hears every improvement and
    `say` what is being done, both possibly from another thread."""

    time_limit: float | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    report: Callable[[Report], None] = lambda _: None
    say: Callable[[str], None] = lambda _: None
    started: float = field(default_factory=time.monotonic)
    best: tuple[int, ...] | None = None
    cost: int | None = None
    bound: int | None = None
    proof: Proof | None = None
    prices: Mapping[int, float] = field(default_factory=dict)  # of memory by instant, as far as a solver tells
    _shown: int = field(default=0, repr=False)  # the bound that `proof` shows
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def deadline(self) -> float | None:
        """On the monotonic clock."""
        return None if self.time_limit is None else self.started + self.time_limit

    @property
    def left(self) -> float | None:
        """Seconds left, 0 when cancelled; None: no limit in time."""
        if self.cancel.is_set():
            return 0.0
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    @property
    def stopped(self) -> bool:
        """Whether to return now with the best so far."""
        return self.cancel.is_set() or (self.deadline is not None and time.monotonic() >= self.deadline)

    def offer(self, choice: tuple[int, ...], cost: int, solver: str) -> bool:
        """Records a choice that the independent evaluator accepted at `cost`; whether it is the best so far."""
        with self._lock:
            better = self.cost is None or cost < self.cost
            if better:
                self.best, self.cost = choice, cost
        if better:
            self._tell(solver)
        return better

    def prove(self, bound: int, solver: str, proof: Proof | None = None) -> None:
        """Records a proven lower bound on every valid choice; `proof` (of the original problem) is kept with the best
        bound that came with one."""
        with self._lock:
            better = self.bound is None or bound > self.bound
            if better:
                self.bound = bound
            if proof is not None and (self.proof is None or bound > self._shown):
                self.proof, self._shown = proof, bound
        if better:
            self._tell(solver)

    def found(self) -> tuple[tuple[int, ...] | None, int | None, int | None]:
        """The best choice, its cost and the best bound, of one moment: a thread may still offer."""
        with self._lock:
            return self.best, self.cost, self.bound

    @property
    def closed(self) -> bool:
        """Whether the best choice is proven optimal."""
        return self.cost is not None and self.bound is not None and self.bound >= self.cost

    def _tell(self, solver: str) -> None:
        self.report(Report(self.cost, self.bound, solver, time.monotonic() - self.started))
