"""Prices on memory, raised until the program fits, and what lies between the choices met on the way.

Lower bounds come from the dual of the Problem's rows (`planner.search.prices.repriced`).  What fits is decided by the
program alone: every choice met is lowered and weighed at once, and handed on where it is the best that fits so far.

1. Choices that are known already, those of `planner.planning.shapes` among them, are weighed.
2. The dual of the limit is maximised, which bounds the cost of all that fits.
3. Where the rows miss some of what a program holds, its prices are multiplied until a choice fits.
4. Between a price at which none fits and one at which one does, all equal layers change at once.  Among the states met
   alone, where a search takes a moment, the two prices are brought together, and the dearer one is then charged for a
   part of the nodes, in graph order, so that some layers hold little and the rest are cheap.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.planning.fit import Fitted, fit, fullest_instant
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.elimination.tables import TooLarge
from planner.search.evaluate import peak_memory
from planner.search.prices.repriced import Repriced, best_among, restricted
from planner.search.problem import Problem
from planner.search.reduction.reduced import Infeasible

__all__ = ["CLOCKED", "Walked", "walk"]

ROUNDS: Final = 8  # of the dual
FEW: Final = 2  # of them, for a first plan
RAISE: Final = 2.0
MOST_RAISES: Final = 8
CLOSER: Final = 7  # halvings of the distance between two prices
CLOSE_PRICES: Final = 1.02
CUTS: Final = 9  # halvings of the part of the graph that is charged more
POOL: Final = 8  # choices whose states are searched among
CLOCKED: Final = 1.05  # times as expensive, a plan may still be faster by the clock
SPREADS: Final = (1.5, 4.0)  # where there is a cost to changing over, prices have to differ by more
PASSES: Final = 2


@dataclass(frozen=True, slots=True)
class Walked:
    """The best choice met that fits (None: none), the one that holds least, a proven bound on the cost of all that
    fit, and the memory prices behind it by instant."""

    fitted: Fitted | None
    smallest: Fitted | None
    bound: int
    prices: Mapping[int, float]


def walk(
    priced: PricedProblem,
    control: Control,
    known: Sequence[Fitted] = (),
    cutoff: int | None = None,
    offer: Callable[[Fitted], object] = lambda _: None,
    *,
    brief: bool = False,
) -> Walked:
    """Looks for choices whose programs fit, from those `known`, and tells `offer` of every better one when it is met.
    Ends early where the bound shows that nothing costs less than `cutoff`; `brief`: after a few prices."""
    return _Walk(priced, control, offer).run(known, cutoff, brief=brief)


class _Walk:
    def __init__(self, priced: PricedProblem, control: Control, offer: Callable[[Fitted], object]) -> None:
        assert priced.problem.limit is not None, "without a limit everything fits"
        self.priced, self.control, self.offer, self.limit = priced, control, offer, priced.problem.limit
        self.free = replace(priced, problem=replace(priced.problem, limit=None))
        self.met: dict[tuple[int, ...], Fitted] = {}
        self.best: Fitted | None = None

    def run(self, known: Sequence[Fitted], cutoff: int | None, *, brief: bool) -> Walked:
        for fitted in known:
            self.met[fitted.choice] = fitted
            self._consider(fitted)
        dual = Repriced(self.priced.problem, self._stopped, starts=[f.choice for f in self.met.values()])
        dual.meet = self._weigh
        try:
            rounds = FEW if brief else ROUNDS
            dual.maximise(self.limit, rounds=rounds, enough=math.inf if cutoff is None else cutoff)
            if not brief and not self._stopped() and (cutoff is None or dual.best(self.limit)[0] < cutoff):
                prices = self._raised(dual)
                for _ in range(PASSES):
                    before = self.best
                    self._between(prices, math.inf if cutoff is None else cutoff * CLOCKED)
                    if self.best is before:
                        break
        except (TooLarge, Infeasible):
            pass
        bound, prices = dual.best(self.limit)
        return Walked(
            self.best,
            min(self.met.values(), key=lambda f: (f.held, f.cost), default=None),
            max(0, math.ceil(bound)) if math.isfinite(bound) else 0,
            {dual.instants[r]: p for r, p in prices.items() if p > 0},
        )

    def _stopped(self) -> bool:
        return self.control.stopped

    def _weigh(self, choice: tuple[int, ...]) -> Fitted | None:
        if choice not in self.met:
            found = fit(self.free, choice)
            if found is None:
                return None
            self.met[choice] = found
            self._consider(found)
        return self.met[choice]

    def _consider(self, found: Fitted) -> None:
        best = self.best
        if found.held <= self.limit and (best is None or (found.cost, found.held) < (best.cost, best.held)):
            self.best = found
            self.offer(found)

    def _fits(self, choice: tuple[int, ...]) -> bool:
        found = self._weigh(choice)
        return found is not None and found.held <= self.limit

    def _raised(self, dual: Repriced) -> dict[int, float]:
        """Prices of rows that are high enough for a choice to fit, or as high as makes sense."""
        prices = {r: p for r, p in dual.best(self.limit)[1].items() if p > 0}
        if not prices:  # the rows are within the limit, but not the program
            first = dual.cuts[0]
            if not first.usage.size:  # nothing is left to choose
                return {}
            prices = {int(np.argmax(first.usage)): first.cost / max(1.0, float(first.usage.max())) / RAISE**4}
        for _ in range(MOST_RAISES):
            if self._stopped():
                break
            choice = dual.evaluate(prices).choice
            if self._fits(choice):
                break
            paid = math.fsum(prices.values())
            prices = {r: p * RAISE for r, p in prices.items()}
            row = self._fullest(dual.instants, choice)
            prices[row] = max(prices.get(row, 0.0), paid)
        return prices

    def _fullest(self, instants: Sequence[int], choice: tuple[int, ...]) -> int:
        """The row nearest to the instant at which the program of a choice holds most."""
        at = fullest_instant(self.free, self.met[choice].choice)
        return min(range(len(instants)), key=lambda r: abs(instants[r] - at))

    def _between(self, prices: Mapping[int, float], cutoff: float) -> None:
        """Searches among the states met, where some choice fits and some better one does not."""
        if self.best is None or not prices:
            return
        pool = self._pool(self.best)
        missed = self.best.held - peak_memory(self.free.problem, self.best.choice)
        chosen = best_among(replace(self.priced.problem, limit=self.limit - max(0, missed)), pool, self._stopped)
        if chosen is not None:
            self._weigh(chosen)
        some = _Among(self.free.problem, pool, prices, self._stopped)
        ends = self._bracket(some, cutoff)
        if ends is None:
            return
        low, high = ends
        two = _Among(self.free.problem, (some.at(low), some.at(high), self.best.choice), prices, self._stopped)
        position = np.arange(two.count)
        for spread, smallest_first in itertools.product(SPREADS, (True, False)):
            begin, end = 0, two.count  # charged more: fits at `end` nodes, not at `begin`
            for _ in range(CUTS):
                middle = (begin + end) // 2
                if self._stopped() or middle == begin:
                    break
                dear = position < middle if smallest_first else position >= two.count - middle
                if self._fits(two.at(np.where(dear, high * spread, low / spread))):
                    end = middle
                else:
                    begin = middle

    def _bracket(self, some: _Among, cutoff: float) -> tuple[float, float] | None:
        """Factors of the prices close to each other: one at which the choice does not fit, one at which it does.  None
        where what does not fit costs `cutoff` or more: what lies between costs no less."""
        low: float | None = None
        high: float | None = None
        factor = 1.0
        for _ in range(MOST_RAISES):
            if self._stopped():
                return None
            if self._fits(some.at(factor)):
                high = factor
            elif self._costs(some.at(factor)) >= cutoff:
                return None
            else:
                low = factor
            if low is not None and high is not None:
                break
            factor = factor / RAISE if low is None else factor * RAISE
        if low is None or high is None:
            return None
        for _ in range(CLOSER):
            if self._stopped() or high <= low * CLOSE_PRICES:
                break
            middle = math.sqrt(low * high)
            if self._fits(some.at(middle)):
                high = middle
            elif self._costs(some.at(middle)) >= cutoff:
                return None
            else:
                low = middle
        return low, high

    def _costs(self, choice: tuple[int, ...]) -> float:
        found = self._weigh(choice)
        return 0 if found is None else found.cost  # what is no choice rules nothing out

    def _pool(self, best: Fitted) -> list[tuple[int, ...]]:
        """The best choices met, of those that fit and, nearest first, of those that do not and cost less."""
        fits = sorted((f for f in self.met.values() if f.held <= self.limit), key=lambda f: f.cost)
        rest = sorted((f for f in self.met.values() if f.held > self.limit), key=lambda f: (f.held, f.cost))
        over = [f for f in rest if f.cost < best.cost]
        return [f.choice for f in (*fits[: POOL // 2], *over[: POOL // 2])]


class _Among:
    """The best among the states of a few choices, at prices times factors."""

    def __init__(
        self,
        problem: Problem,
        pool: Sequence[tuple[int, ...]],
        prices: Mapping[int, float],
        stop: Callable[[], bool],
    ) -> None:
        small, self.states = restricted(problem, pool)
        starts = [[int(np.searchsorted(s, x)) for s, x in zip(self.states, c, strict=True)] for c in pool]
        self.dual, self.prices, self.count = Repriced(small, stop, starts=starts), prices, len(small.nodes)
        self._known: dict[bytes, tuple[int, ...]] = {}

    def at(self, factors: float | NDArray[np.float64]) -> tuple[int, ...]:
        """`factors`: one for all nodes, or each node's own."""
        each = np.full(self.count, factors) if isinstance(factors, float) else factors
        key = each.tobytes()
        if key not in self._known:
            cut = self.dual.tilted(self.prices, each)
            self._known[key] = tuple(int(s[x]) for s, x in zip(self.states, cut.choice, strict=True))
        return self._known[key]
