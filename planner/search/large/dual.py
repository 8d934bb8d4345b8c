"""The Lagrangian dual of the memory rows over message passing.

For prices p >= 0 per byte of every row, TRW-S bounds min_x cost(x) + p (usage(x) - limits) from below.  One sweep
forward and back, a choice decoded from the messages, and a step of the prices along the choice's (averaged) excess

    g <- 0.9 g + 0.1 (usage(x) - limits),      p <- max(0, p + step (target - bound) / |g|^2 g)

follow each other: a deflected subgradient method with Polyak's step (Camerini, Fratta and Maffioli 1975) in which
the messages stay warm.  Where the bound stops rising, the steps shrink and start again from the best prices: longer
patience only lets them swing from one side of the optimum to the other.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from planner.native.forest import Forest
from planner.native.sweeps import decode, sweep
from planner.search.messages.trws import Messages
from planner.search.reduction.reduced import Reduced

__all__ = ["Dual"]

Floats = NDArray[np.float64]
KEEP = 0.9  # of the averaged excess, at every step
PATIENCE = 5  # steps without a better bound before the steps shrink, and go on from the best prices
SHRINK = 0.7
SHORTEST, AGAIN = 1e-4, 0.1  # steps this short end a descent; the next one begins with `AGAIN`
REACH = 0.3  # a target further above the bound than this share of it makes steps too long


class Dual:
    """`prices` are the present ones; `best_prices` gave the best bound, and `best_choice` is what they decoded to."""

    def __init__(self, reduced: Reduced, forest: Forest, beyond: float) -> None:
        self.reduced, self.forest = reduced, forest
        self.messages = _Messages(reduced, beyond)
        self.ends = np.array([u for u, _, _ in reduced.edges], np.int64)
        rows = len(reduced.limits)
        self.prices, self.best_prices, self.excess = np.zeros(rows), np.zeros(rows), np.zeros(rows)
        self.best_bound = -math.inf
        self.best_choice = np.zeros(len(reduced.nodes), np.int64)
        self.length, self.stale, self.descents, self.steps = 1.0, 0, 0, 0
        graph = forest.graph
        holder = np.repeat(np.arange(graph.nodes), np.diff(graph.term_at))
        spans = zip(graph.held, graph.sizes[holder], strict=True)
        self._held = sum(float(np.abs(graph.uses[h : h + d]).max()) for h, d in spans)

    def step(self, target: float) -> None:
        """One sweep each way, one choice, one step; `target` is the cost of the best choice (inf: none)."""
        self.steps += 1
        self.forest.set_prices(self.prices)
        unary = self.forest.graph.unary + self.forest.price
        paid = self.prices > 0  # of many thousand rows, some hundred
        allowance = math.fsum(self.prices[paid] * self.reduced.limits[paid])
        bound = self.messages.both_ways(unary) + self.reduced.offset - allowance
        if bound > self.best_bound:
            bound -= self._rounding()
        choice = self.messages.decoded(unary, self.ends)
        over = self._judged(choice)
        if bound > self.best_bound:
            self.best_bound, self.stale = bound, 0
            self.best_prices, self.best_choice = self.prices.copy(), choice
        else:
            self._tire()
        self.excess = KEEP * self.excess + (1 - KEEP) * over
        direction = np.where((self.prices <= 0) & (self.excess < 0), 0.0, self.excess)
        square = float(np.square(direction).sum())  # `@` would wake the threads of BLAS, which wait for their turn
        if square > 0:
            goal = min(target, self.best_bound + REACH * max(1.0, abs(self.best_bound)))
            scale = (1 - KEEP) * self.length * max(0.0, goal - bound) / square
            self.prices = np.maximum(0.0, self.prices + scale * direction)

    def _judged(self, choice: NDArray[np.int64]) -> Floats:
        """By how much the choice exceeds every row; where it fits, the forest keeps it."""
        over = self.forest.levels(choice) - self.reduced.limits
        if over.max(initial=0.0) <= 0:
            self.forest.reset(choice)
        return over

    def _rounding(self) -> float:
        """What float64 may have added to the bound: every operation errs by at most 2^-53 of a value no larger than
        its node's scores, and there are fewer than 500 of them for each; prices are differences of running sums."""
        layout = self.messages.layout
        scores = np.maximum.reduceat(np.abs(self.messages.scores), layout.start[:-1]) if layout.nodes else np.zeros(1)
        paid = float(self.prices.sum()) * self._held + math.fsum(self.prices * np.abs(self.reduced.limits))
        return 1e-13 * float(scores.sum()) + 1e-15 * len(self.prices) * paid

    def _tire(self) -> None:
        self.stale += 1
        if self.stale > PATIENCE:
            self.stale = 0
            self.length *= SHRINK
            self.prices = self.best_prices.copy()
            if self.length < SHORTEST:
                self.length = AGAIN
                self.descents += 1


class _Messages(Messages):
    """Messages whose unary costs are given sweep by sweep."""

    def both_ways(self, unary: Floats) -> float:
        """One sweep forward and one back; the bound, up to the problem's offset and the prices' allowance."""
        arrays = (unary, self._costs, self._flipped, self.to_v, self.to_u, self.scores)
        sweep(self.layout, *arrays, forward=True)
        return sweep(self.layout, *arrays, forward=False)

    def decoded(self, unary: Floats, ends: NDArray[np.int64]) -> NDArray[np.int64]:
        return decode(self.layout, unary, self._costs, self.to_u, ends)
