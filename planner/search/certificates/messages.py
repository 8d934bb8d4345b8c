"""A leaf of messages: tree-reweighted message passing at memory prices that a subgradient ascent improves.

The bound of the messages is concave in the prices, and the bytes by which the messages' favourite states exceed the
limits are close to a subgradient; steps follow Polyak's rule towards the cost of the best choice known (B. T. Polyak,
"Minimization of unsmooth functionals", USSR Comp. Math. 9(3), 1969).  The best prices and messages met are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from planner.search.certificates.certificate import LARGEST, Leaf, Messages, rounded_prices
from planner.search.messages.trws import Messages as Passing
from planner.search.reduction.reduced import Reduced

__all__ = ["leaf_by_messages"]

SWEEPS = 200  # at the first prices, and at the last
SHORT = 10  # at prices nearby
ASCENTS = 600
STALE = 6  # ascents without a better bound after which the step gets shorter, from the best prices on
SHORTEST = 1e-3
BEYOND = 1.05  # times the bound, the goal where no cost is known
FINEST = 2**24


def leaf_by_messages(reduced: Reduced, prices: Mapping[int, float], cost: int | None, stop: Callable[[], bool]) -> Leaf:
    """The leaf for a problem in which nothing was presolved away.  `prices` by row, in its units, to start from."""
    ascent = _Ascent(reduced, prices, None if cost is None else cost / reduced.scale, stop)
    ascent.run()
    return ascent.leaf()


class _Ascent:
    def __init__(
        self, reduced: Reduced, prices: Mapping[int, float], goal: float | None, stop: Callable[[], bool]
    ) -> None:
        self.reduced, self.goal, self.stop = reduced, goal, stop
        arrays = reduced.arrays
        factors = (*reduced.nodes, *(f for _, _, f in reduced.edges))
        above = math.fsum(max(0.0, arrays.high(f.costs)) for f in factors)
        self.beyond = 4 * math.ceil(abs(reduced.offset) + above) + 1
        self.passing = Passing(reduced, float(self.beyond))
        self.prices = np.zeros(len(reduced.limits))
        self.prices[list(prices)] = list(prices.values())
        self.bound = self.best = -math.inf
        self.best_messages = (self.prices, self.passing.to_u.copy(), self.passing.to_v.copy())

    def run(self) -> None:
        self._sweep(SWEEPS)
        step, stale = 1.0, 0
        for _ in range(ASCENTS):
            excess = self._usage() - self.reduced.limits
            direction = np.where((self.prices > 0) | (excess > 0), excess, 0.0)
            norm = float(direction @ direction)
            goal = self.best + (BEYOND - 1) * abs(self.best) if self.goal is None else self.goal
            if norm == 0 or self.best >= goal or step < SHORTEST or self.stop():
                break
            length = step * (goal - self.bound) / norm
            self.prices = np.maximum(0.0, self.prices + length * direction)
            stale = 0 if self._sweep(SHORT) else stale + 1
            if stale >= STALE:
                step, stale = step / 2, 0
                self._restore()
        self._restore()
        if not self.stop():
            self._sweep(SWEEPS)
            self._restore()

    def _sweep(self, sweeps: int) -> bool:
        """Passes messages at the present prices; whether the bound is the best so far, which is then kept."""
        self.passing.set_prices({int(r): float(self.prices[r]) for r in np.flatnonzero(self.prices)})
        self.passing.run(sweeps=sweeps, enough=math.inf if self.goal is None else self.goal, stop=self.stop)
        self.bound = self.passing.bound
        better = self.bound > self.best
        if better:
            self.best = self.passing.bound
            self.best_messages = (self.prices, self.passing.to_u.copy(), self.passing.to_v.copy())
        return better

    def _restore(self) -> None:
        self.bound = self.best
        self.prices, to_u, to_v = self.best_messages
        self.passing.to_u[:], self.passing.to_v[:] = to_u, to_v
        self.passing.set_prices({int(r): float(self.prices[r]) for r in np.flatnonzero(self.prices)})

    def _usage(self) -> NDArray[np.float64]:
        """Bytes in every row if every node took the state that the messages favour."""
        start, scores = self.passing.layout.start, self.passing.scores
        change = np.zeros(len(self.prices) + 1)
        favourites = [int(np.argmin(scores[start[v] : start[v + 1]])) for v in range(len(self.reduced.nodes))]
        for x, factor in zip(favourites, self.reduced.nodes, strict=True):
            for (a, b), number in factor.usage:
                change[a] += self.reduced.arrays[number][x]
                change[b] -= self.reduced.arrays[number][x]
        for u, v, factor in self.reduced.edges:
            for (a, b), number in factor.usage:
                change[a] += self.reduced.arrays[number][favourites[u], favourites[v]]
                change[b] -= self.reduced.arrays[number][favourites[u], favourites[v]]
        return np.cumsum(change)[:-1]

    def leaf(self) -> Leaf:
        """In terms of states: the kernels' messages are over classes of them."""
        reduced, layout = self.reduced, self.passing.layout
        room = LARGEST / (64.0 * self.beyond * reduced.scale)  # a node's vector adds up many messages
        fine = 2 ** max(0, min(round(math.log2(FINEST)), math.floor(math.log2(room))))
        found = self.passing.certified(fine)
        to_u, to_v = [], []
        for e, (u, v, _) in enumerate(reduced.edges):
            of_u = layout.maps[layout.map_u[e] :][: reduced.size(u)]
            of_v = layout.maps[layout.map_v[e] :][: reduced.size(v)]
            to_u.append(found.to_u[layout.to_u_at[e] + of_u] * reduced.scale)
            to_v.append(found.to_v[layout.to_v_at[e] + of_v] * reduced.scale)
        messages = Messages(tuple((u, v) for u, v, _ in reduced.edges), tuple(to_u), tuple(to_v))
        paid = {t: float(p) * reduced.scale for t, p in zip(reduced.instants, self.prices, strict=True)}
        return Leaf(fine, rounded_prices(paid, fine), (), messages)
