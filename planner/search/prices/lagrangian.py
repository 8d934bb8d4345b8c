"""The Lagrangian of the memory rows, evaluated by elimination, and its maximisation by cutting planes.

With a price m_r >= 0 (cost per byte) on every row r,

    L(m) = min_x cost(x) + sum_r m_r (use_r(x) - limit_r)

is a lower bound on the cost of every choice within the limits, and the minimising x, where it is within
them, a candidate.  L is concave and piecewise linear; Kelley's method (with in-out smoothing) maximises the
model made of the cuts seen.  Rows enter when first violated: most never bind.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.search.elimination.eliminate import Leaf, eliminate
from planner.search.elimination.tables import TableStore
from planner.search.prices.master import Cut, Master
from planner.search.reduction.reduced import Factor, Infeasible, Reduced

__all__ = ["Dual", "Lagrangian", "Masks"]

Masks = Mapping[int, NDArray[np.bool_]]  # node -> its allowed states; absent: all
UNIT = 2.0**-53  # rounding unit of float64


@dataclass(slots=True)
class Dual:
    """`bound` on every choice allowed by the masks, reached at `prices`; `weights` are the convex combination of
    `cuts` that the last model mixed (its fractional solution)."""

    bound: float
    prices: dict[int, float]
    cuts: list[Cut] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


class Lagrangian:
    """Evaluates L; tables are shared between evaluations."""

    def __init__(self, problem: Reduced, *, store: TableStore | None = None) -> None:
        self.problem = problem
        self.store = store or TableStore()
        self.order: tuple[int, ...] | None = None
        self.factors: list[tuple[Factor, tuple[int, ...]]] = [
            *((f, (v,)) for v, f in enumerate(problem.nodes)),
            *((f, (u, v)) for u, v, f in problem.edges),
        ]

    @property
    def work(self) -> int:
        """Work done so far, in table entries; finding an elimination already done costs about a thousand."""
        return self.store.entries + 1000 * (self.store.hits + self.store.misses)

    def evaluate(self, prices: Mapping[int, float], masks: Masks) -> tuple[float, Cut]:
        """(a value that L(prices) certainly reaches, the minimising choice).  `Infeasible`, `TooLarge`."""
        self.store.trim(50_000)
        active = sorted((r, m) for r, m in prices.items() if m > 0)
        parts: list[float] = []
        leaves: list[Leaf] = []
        magnitude = 0.0
        for factor, scope in self.factors:
            number, least, high = self._leaf(factor, scope, active, masks)
            leaves.append((number, scope))
            parts.append(least)
            magnitude += high
        sizes = [self.problem.size(v) for v in range(len(self.problem.nodes))]
        found = eliminate(self.store, sizes, leaves, self.order)
        self.order = found.order
        allowance = [m * float(self.problem.limits[r]) for r, m in active]
        value = math.fsum([self.problem.offset, found.value, *parts, *(-a for a in allowance)])
        if active:
            # every table is non-negative, so rounding loses at most one unit of `found.value` per factor
            value -= UNIT * (len(leaves) * found.value + 4 * magnitude + 4 * sum(map(abs, allowance)))
        cost = self.problem.cost(found.choice)
        return value, Cut(found.choice, cost, self.problem.usage(found.choice))

    def _leaf(
        self, factor: Factor, scope: tuple[int, ...], active: list[tuple[int, float]], masks: Masks
    ) -> tuple[int, float, float]:
        """(table number, its subtracted minimum, largest magnitude in it)."""
        priced = []
        for (a, b), number in factor.usage:
            price = math.fsum(m for r, m in active if a <= r < b)
            if price:
                priced.append((number, price))
        mask = masks.get(scope[0]) if len(scope) == 1 else None
        key = (factor.costs, tuple(priced), None if mask is None else mask.tobytes(), len(scope))
        known = self.store.known_leaf(key)
        arrays = self.problem.arrays
        high = max(abs(arrays.high(factor.costs)), abs(arrays.low(factor.costs)))
        high += sum(price * arrays.high(number) for number, price in priced)
        if known is None:
            values = arrays[factor.costs]
            for number, price in priced:
                values = values + price * arrays[number]
            if mask is not None:
                values = np.where(mask, values, np.inf)
            known = self.store.leaf(key, values)
        return known[0], known[1], high

    def maximise(
        self,
        masks: Masks,
        start: Mapping[int, float],
        *,
        rounds: int,
        enough: float,
        spread: float,
        stop: Callable[[], bool] = lambda: False,
    ) -> Dual:
        """The best bound found in `rounds` evaluations, stopping early above `enough` or when `stop()`.

        `spread` is an upper bound on what any allowed choice can cost: a bound above it proves that none fits
        (raises `Infeasible`).
        """
        limits = self.problem.limits
        best = Dual(-math.inf, dict(start))
        cuts: list[Cut] = []
        choices: set[tuple[int, ...]] = set()
        smooth = 0.0
        master = Master(spread - self.problem.offset)
        point = dict(start)
        for round_ in range(rounds):
            value, cut = self.evaluate(point, masks)
            seen = cut.choice in choices
            choices.add(cut.choice)
            cuts.append(cut)
            excess = cut.usage - limits
            if value > best.bound:
                best = Dual(value, point)
            if best.bound > spread:
                raise Infeasible
            if best.bound >= enough or stop():
                break
            if seen and not smooth:  # the model already had this cut where it was highest: it is exact there
                break
            worst = int(np.argmax(excess)) if len(excess) else 0
            if len(excess) and excess[worst] > 0:
                master.row(worst, float(limits[worst]), float(excess[worst]), cuts)
            for r in point:
                master.row(r, float(limits[r]), abs(float(excess[r])), cuts)
            master.cut(cut, limits)
            solved = master.solve()
            if solved and solved[1] - best.bound <= max(1e-9 * abs(solved[1]), 1e-3) and master.at_box(solved[0]):
                master.widen()
                solved = master.solve()
            if solved is None or solved[1] - best.bound <= max(1e-9 * abs(solved[1]), 1e-3):
                break
            target = solved[0]
            smooth = 0.0 if seen or round_ % 3 == 2 or len(master.rows) == 1 else 0.3
            names = set(target) | (set(best.prices) if smooth else set())
            point = {r: (1 - smooth) * target.get(r, 0.0) + smooth * best.prices.get(r, 0.0) for r in names}
            point = {r: m for r, m in point.items() if m > 0}
        best.cuts = cuts
        best.weights = master.weights(len(cuts))
        return best
