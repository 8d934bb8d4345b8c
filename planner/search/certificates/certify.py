"""Builds proofs of lower bounds, in terms of the original problem, for answers whose solver hands none out.

Nothing is presolved away here, because the checker knows no presolve.  Where elimination is narrow enough, each leaf is
a Lagrangian at good memory prices, and branching on the node on which its fractional solution disagrees most closes
the gap; elsewhere one leaf carries messages.  Floating point only steers: the checker judges what comes out.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from planner.search.certificates.certificate import LARGEST, Leaf, Proof, Split, rounded_prices
from planner.search.certificates.messages import leaf_by_messages
from planner.search.checks.fit import Nothing, fitting, without
from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.prices.lagrangian import Dual, Lagrangian, Masks
from planner.search.prices.master import Cut
from planner.search.problem import Problem
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible, Reduced

__all__ = ["certify"]

WORK = 1 << 25  # table entries, some seconds
MOST_LEAVES = 4000
WIDE = 1 << 24  # table entries of a single leaf up to which it may: some ten seconds
SMALL = 4000  # states of all nodes together up to which the checker's arithmetic may leave 64 bits


def certify(
    problem: Problem,
    *,
    cost: int | None,
    prices: Mapping[int, float],
    stop: Callable[[], bool] = lambda: False,
    narrow: bool = True,
) -> Proof:
    """A proof of a bound as near to `cost` (of the best choice known; None: none is) as work and `stop` allow.

    `prices` are memory prices by instant to start from; `narrow` tries elimination before messages.  Where nothing is
    valid, the proof shows that (with messages as far as they can).
    """
    try:
        fits = without(problem, fitting(problem, {}))
    except Nothing:
        return (Leaf(costs=False),)
    reduced = presolve(fits, prune=False)
    rows = {t: r for r, t in enumerate(reduced.instants)}
    start = {rows[t]: p / reduced.scale for t, p in prices.items() if t in rows and p > 0}
    if narrow:
        with contextlib.suppress(TooLarge):
            return _Tree(reduced, cost, start, stop).run()
    return (leaf_by_messages(reduced, start, cost, stop),)


class _Recorded(Lagrangian):
    """Remembers the best value met, also where the maximisation ends in `Infeasible`."""

    best: tuple[float, dict[int, float]] = (-math.inf, {})
    impossible = False  # whether the last evaluation found no choice allowed

    def evaluate(self, prices: Mapping[int, float], masks: Masks) -> tuple[float, Cut]:
        self.impossible = True
        found = super().evaluate(prices, masks)
        self.impossible = False
        if found[0] > self.best[0]:
            self.best = (found[0], dict(prices))
        return found


class _Tree:
    """Branch and bound that keeps its tree.  Leaves are refined best bound first, so that the bound grows evenly."""

    def __init__(self, reduced: Reduced, cost: int | None, start: dict[int, float], stop: Callable[[], bool]) -> None:
        self.reduced, self.start, self.stop = reduced, start, stop
        arrays = reduced.arrays
        factors = (*reduced.nodes, *(f for _, _, f in reduced.edges))
        self.magnitude = math.fsum(max(abs(arrays.high(f.costs)), abs(arrays.low(f.costs))) for f in factors)
        self.spread = reduced.offset + math.fsum(max(0.0, arrays.high(f.costs)) for f in factors)
        self.enough = math.inf if cost is None else cost / reduced.scale - 1 + 1e-6
        self.dual = _Recorded(reduced, store=TableStore(total_cap=WORK))
        self.small = sum(len(s) for s in reduced.states) <= SMALL
        self.proof: list[Leaf | Split] = []
        self.open: list[tuple[float, int, dict[int, NDArray[np.bool_]], Dual]] = []

    def run(self) -> Proof:
        self._visit({}, self.start, rounds=60)
        while self.open and len(self.proof) < MOST_LEAVES and not self.stop() and self.dual.work < WORK:
            _, place, masks, dual = heapq.heappop(self.open)
            node = self._disagreement(masks, dual)
            if node is None:
                continue
            parts = self._parts(node, masks, dual)
            children = [self._visit({**masks, node: part}, dual.prices, rounds=12) for part in parts]
            states = tuple(tuple(np.flatnonzero(part).tolist()) for part in parts)
            self.proof[place] = Split(node, states, tuple(children))
        return tuple(self.proof)

    def _visit(self, masks: dict[int, NDArray[np.bool_]], start: Mapping[int, float], *, rounds: int) -> int:
        """Bounds what `masks` allow; the place of its leaf, which is opened where the bound is not enough."""
        place = len(self.proof)
        self.dual.best = (-math.inf, dict(start))
        try:
            dual = self.dual.maximise(
                masks, start, rounds=rounds, enough=self.enough, spread=self.spread, stop=self.stop
            )
        except Infeasible:
            # Either no state is left, or the bound is above all costs: then its memory term alone is positive.
            prices = {} if self.dual.impossible else self.dual.best[1]
            self.proof.append(self._leaf(prices, costs=False))
            return place
        self.proof.append(self._leaf(dual.prices, costs=True))
        if dual.bound <= self.enough:
            heapq.heappush(self.open, (dual.bound, place, masks, dual))
        return place

    def _leaf(self, prices: Mapping[int, float], *, costs: bool) -> Leaf:
        """Prices rounded so finely that the bound keeps its last unit where that is affordable."""
        scale = self.reduced.scale
        paid = {self.reduced.instants[r]: p * scale for r, p in prices.items() if p > 0}
        denominator = 1
        if paid:
            held = sum(float(abs(self.reduced.limits[r])) for r in prices) + 1.0
            wanted = 2 ** min(200, math.ceil(math.log2(64 * held)))
            fits = LARGEST / max(self.magnitude * scale + max(paid.values()) * held, 1.0)
            wide = self.small or (not self.proof and self.dual.work <= WIDE)
            denominator = wanted if wide else max(1, min(wanted, 2 ** max(0, math.floor(math.log2(fits)))))
        order = self.dual.order or _by_degree(self.reduced)
        return Leaf(denominator, rounded_prices(paid, denominator), order, None, costs)

    def _disagreement(self, masks: Masks, dual: Dual) -> int | None:
        """The node on which the mixed choices differ most in weight and bytes; else one with states left to split."""
        used = [(w, c.choice) for w, c in zip(dual.weights, dual.cuts, strict=False) if w > 1e-9]
        total = sum(w for w, _ in used) or 1.0
        best: tuple[float, int] | None = None
        for v in range(len(self.reduced.nodes)):
            shares: dict[int, float] = {}
            for w, x in used:
                shares[x[v]] = shares.get(x[v], 0.0) + w / total
            apart = 1.0 - max(shares.values(), default=1.0)
            if apart > 1e-9:
                held = self._held(v)[list(shares)]
                score = apart * (1.0 + float(held.max() - held.min()))
                if best is None or score > best[0]:
                    best = (score, v)
        if best is not None:
            return best[1]
        counts = [int(masks[v].sum()) if v in masks else len(s) for v, s in enumerate(self.reduced.states)]
        widest = int(np.argmax(counts))
        return widest if counts[widest] > 1 else None

    def _parts(self, v: int, masks: Masks, dual: Dual) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """By memory half-way between the states used where they differ, else one state used from the rest."""
        allowed = masks.get(v, np.ones(self.reduced.size(v), bool))
        used = [c.choice[v] for w, c in zip(dual.weights, dual.cuts, strict=False) if w > 1e-9]
        used = [x for x in used if allowed[x]] or [int(np.argmax(allowed))]
        held = self._held(v)
        low, high = held[used].min(), held[used].max()
        left = held <= (low + high) / 2 if low < high else np.arange(len(allowed)) == used[0]
        if not (allowed & left).any() or not (allowed & ~left).any():
            left = np.arange(len(allowed)) == int(np.argmax(allowed))
        return allowed & left, allowed & ~left

    def _held(self, v: int) -> NDArray[np.float64]:
        arrays = self.reduced.arrays
        return np.asarray(sum((arrays[n] for _, n in self.reduced.nodes[v].usage), np.zeros(self.reduced.size(v))))


def _by_degree(reduced: Reduced) -> tuple[int, ...]:
    """All nodes, the one with fewest neighbours left first."""
    around: list[set[int]] = [set() for _ in reduced.nodes]
    for u, v, _ in reduced.edges:
        around[u].add(v)
        around[v].add(u)
    heap = [(len(a), v) for v, a in enumerate(around)]
    heapq.heapify(heap)
    gone: dict[int, None] = {}
    while heap:
        degree, v = heapq.heappop(heap)
        if v in gone or degree != len(around[v]):
            continue
        gone[v] = None
        for u in around[v]:
            around[u] |= around[v] - {u}
            around[u].discard(v)
            heapq.heappush(heap, (len(around[u]), u))
    return tuple(gone)
