"""When a search on a reduced problem may end, and whom it tells of better choices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Goal"]

Choice = tuple[int, ...]
GOOD = 1e-3  # relative gap, far below what prices are accurate to


@dataclass(frozen=True, slots=True)
class Goal:
    """`stop` says that time is up; a choice that costs `cutoff` or more is of no use; a relative gap of `tolerance`
    counts as closed.  `offer` takes every better choice with its cost, in the units of the reduced problem."""

    stop: Callable[[], bool] = lambda: False
    cutoff: float = math.inf
    tolerance: float = 0.0
    offer: Callable[[Choice, float], None] = lambda _choice, _cost: None

    def target(self, cost: float) -> float:
        """The bound from which on nothing is left to find, where `cost` is known.  Costs are integers, so that a
        bound above cost - 1 proves the optimum."""
        best = min(cost, self.cutoff)
        if not math.isfinite(best):
            return math.inf
        return min(math.nextafter(best - 1, math.inf), best - self.tolerance * abs(best))

    def closed(self, bound: float, cost: float) -> bool:
        """Whether nothing is left to find."""
        return bound >= self.target(cost)

    def good(self, bound: float, cost: float) -> bool:
        """Whether what is left to find is hardly worth the search."""
        best = min(cost, self.cutoff)
        return math.isfinite(best) and best - bound <= GOOD * abs(best)
