"""Choices within the memory limits: descents from the dual's choices, and annealing from the best one.

A descent takes a choice decoded from the messages, improves it with moves on trees at the dual's prices, raises the
prices of rows that are still too full until all fit, and ends without prices under the hard limit.  Annealing draws
every tree's states with Gumbel noise (perturb and maximise: Papandreou and Yuille 2011), at a temperature that falls.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from planner.native.forest import Forest

__all__ = ["Primal"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
CHUNKS = 60  # calls of the kernel in one annealing
SETTLING = 20  # calls at most until it has settled
REPAIRS = 60
SIZES = (1, 4, 30, 100, 300, 1000)
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.25)  # of the prices
HEAT = (-3.0, 0.3)  # powers of ten of the average cost of a node
PEAKS = 8  # rows whose price is raised in one repair


class Primal:
    """`forest.best` is the best choice so far; `found` is called when there may be a better one.  Each stage returns
    early once `stopped`."""

    def __init__(self, forest: Forest, seed: int, stopped: Callable[[], bool], found: Callable[[Forest], None]) -> None:
        self.forest, self.stopped, self.found = forest, stopped, found
        self.random = np.random.default_rng(seed)
        self.moves = max(200, forest.graph.nodes // 5)  # in one call; a few of them meet every node
        self._lucky: tuple[float, int, float] | None = None
        self.pull = 0.02  # of a repair, as a share of the cost

    def descend(self, x: Integers, prices: Floats) -> None:
        """From a choice decoded at these prices to the nearest good one within the limits."""
        forest = self.forest
        forest.reset(x)
        forest.set_prices(prices)
        self._settle(hard=False)
        paid = self._repair(prices)
        if paid is None:
            return
        forest.set_prices(paid)
        self._settle(hard=True)
        self._finish(prices)

    def anneal(self, x: Integers, prices: Floats) -> None:
        """From a choice within the limits, at a temperature that falls a hundredfold.

        How hot, how large the trees and how dear the memory is drawn at random, every other time near to what last
        led to a better choice.
        """
        forest = self.forest
        heat, largest, share = self._drawn()
        forest.reset(x)
        before = forest.best_cost
        forest.set_prices(share * prices)
        high = 10**heat * abs(forest.cost) / max(1, forest.graph.nodes)
        for k in range(CHUNKS):
            if self.stopped():
                break  # what it has found by then counts
            forest.search(self.moves, largest, temperature=high * 0.01 ** (k / CHUNKS))
        self._finish(share * prices)
        if forest.best_cost < before:
            self._lucky = heat, largest, share

    def _drawn(self) -> tuple[float, int, float]:
        random = self.random
        if self._lucky is not None and random.random() < 0.5:
            heat, largest, share = self._lucky
            return heat + float(random.normal(0.0, 0.2)), largest, share
        return float(random.uniform(*HEAT)), int(random.choice(SIZES)), float(random.choice(SHARES))

    def _finish(self, prices: Floats) -> None:
        for share in (1.0, 0.5, 0.0):
            self.forest.set_prices(share * prices)
            self._settle(hard=True)

    def _settle(self, *, hard: bool) -> None:
        """Moves until few of them change anything."""
        for _ in range(SETTLING):
            if self.stopped() or self.forest.search(self.moves, 300, hard=hard) <= self.moves // 50:
                break
        self.found(self.forest)

    def _repair(self, prices: Floats) -> Floats | None:
        """Prices at which the choice fits; None where that does not come about."""
        forest, limits = self.forest, self.forest.graph.limits
        paid = prices.copy()
        pull = self.pull * abs(forest.cost) / max(1.0, float(limits.max(initial=1.0)))
        for _ in range(REPAIRS):
            if forest.over <= 0:
                return paid
            if self.stopped():
                return None
            over = forest.levels() - limits
            for r in _peaks(over):
                paid[r] += pull * (0.2 + over[r] / max(over.max(), 1.0))
            forest.set_prices(paid)
            forest.search(self.moves, 100, hard=False)
            if forest.over > 0:
                forest.search(self.moves, 10, hard=True)
            pull *= 1.1
        self.pull = min(10.0, 2 * self.pull)
        return None


def _peaks(over: Floats) -> list[int]:
    """Rows that exceed their limit most, some distance from each other."""
    apart = max(1, len(over) // 64)
    rest = over.copy()
    found = []
    for _ in range(PEAKS):
        r = int(rest.argmax())
        if not rest[r] > 0 or not math.isfinite(rest[r]):
            break
        found.append(r)
        rest[max(0, r - apart) : r + apart] = -math.inf
    return found
