"""Search under a memory limit: Lagrangian bounds by elimination, repair, and branch and bound.

The root's dual gives a bound and near-feasible choices; local search turns these into plans within the
limit.  What gap remains is closed by branching on the node on which the dual's fractional solution
disagrees most, its states split by the memory they hold.  Only tables along the branched nodes change, so a
child's bound re-uses almost every elimination of its parent's.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.search.elimination.tables import TableStore
from planner.search.evaluate import peak_memory
from planner.search.goal import Goal
from planner.search.prices.lagrangian import Dual, Lagrangian, Masks
from planner.search.prices.local import LocalSearch
from planner.search.prices.master import Cut, game_weights
from planner.search.problem import FORBIDDEN, Problem
from planner.search.reduction.presolve import presolve
from planner.search.reduction.reduced import Infeasible, Reduced

__all__ = ["Bounded", "MinimumMemory", "branch_and_bound", "minimum_memory"]

WORK = 10**9  # table entries that `minimum_memory` may compute: some seconds
CLOSE_WORK = 4 * 10**7  # spent on a gap that is good already: about a second
CLOSE = 1e-4  # relative gap at which it stops
LOWERED = 10**8  # rows times states up to which it searches for a still lower peak


@dataclass(frozen=True, slots=True)
class Bounded:
    """Best choice found for the reduced problem (None: none), a proven lower bound on all of them, and the memory
    prices at which the root's bound was reached."""

    choice: tuple[int, ...] | None
    bound: float
    prices: Mapping[int, float] = field(default_factory=dict)


class MinimumMemory(NamedTuple):
    """`lower_bound`: bytes below which no allowed choice's peak lies; `achieved`: the peak of `choice`
    (None and empty when every choice is forbidden)."""

    lower_bound: int
    achieved: int | None
    choice: tuple[int, ...]


def branch_and_bound(
    problem: Reduced, goal: Goal, *, work: int, close: int = CLOSE_WORK, prices: Mapping[int, float] | None = None
) -> Bounded:
    """Least cost within the limits.  `work` caps the table entries computed, `close` those spent on a gap that is
    good already.  The dual starts from `prices`.

    Raises `Infeasible` when no choice below the goal's cutoff is left, `TooLarge` when elimination does not apply.
    """
    return _Search(problem, goal, work, close).run(prices or {})


class _Search:
    def __init__(self, problem: Reduced, goal: Goal, work: int, close: int) -> None:
        self.problem, self.goal = problem, goal
        self.work, self.close = work, close
        self.dual = Lagrangian(problem, store=TableStore(stop=goal.stop))
        self.local = LocalSearch(problem)
        self.choice: tuple[int, ...] | None = None
        self.cost = math.inf
        self.floor = math.inf  # least bound of the parts that were closed
        arrays = problem.arrays
        factors = (*problem.nodes, *(f for _, _, f in problem.edges))
        self.spread = problem.offset + sum(max(0.0, arrays.high(f.costs)) for f in factors)

    @property
    def _done(self) -> int:
        return self.dual.work + self.local.work

    @property
    def _spent(self) -> bool:
        return self.goal.stop() or self._done >= self.work

    def run(self, prices: Mapping[int, float]) -> Bounded:
        counter = 0
        queue: list[tuple[float, int, dict[int, NDArray[np.bool_]], Dual]] = []

        def visit(masks: dict[int, NDArray[np.bool_]], start: Mapping[int, float], floor: float, root: bool) -> None:
            nonlocal counter, prices
            try:
                dual = self._bound(masks, start, 60 if root else 12, 4 if root else 2)
            except Infeasible:
                return
            if root:
                prices = dual.prices
            bound = max(floor, dual.bound)
            if self._closed(bound):
                self.floor = min(self.floor, bound)
            else:
                counter += 1
                heapq.heappush(queue, (bound, counter, masks, dual))

        visit({}, prices, -math.inf, True)
        begun = self._done
        while queue:
            bound, _, masks, dual = queue[0]
            good = self.goal.good(bound, self.cost)
            if self._closed(bound) or self._spent or (good and self._done - begun >= self.close):
                return Bounded(self.choice, min(bound, self.floor, self.cost), prices)
            heapq.heappop(queue)
            for child in self._branch(masks, dual):
                visit(child, dual.prices, bound, False)
        if self.choice is None and math.isinf(self.floor):
            raise Infeasible
        return Bounded(self.choice, min(self.floor, self.cost), prices)

    def _closed(self, bound: float) -> bool:
        return self.goal.closed(bound, self.cost)

    def _bound(self, masks: Masks, start: Mapping[int, float], rounds: int, repairs: int) -> Dual:
        dual = self.dual.maximise(
            masks,
            start,
            rounds=rounds,
            enough=self.goal.target(self.cost),
            spread=self.spread,
            stop=lambda: self._spent,
        )
        for cut in dual.cuts:
            self._offer(cut)
        for cut in sorted(dual.cuts, key=lambda c: self._priced(c, dual.prices))[:repairs]:
            if self._closed(dual.bound) or (self._spent and self.choice is not None):
                break
            found = self.local.improve(cut.choice, masks, sweeps=12)
            if found is not None:
                self._offer(Cut(found, self.problem.cost(found), self.problem.usage(found)))
        return dual

    def _priced(self, cut: Cut, prices: Mapping[int, float]) -> tuple[float, float]:
        """Cost with what is over the limits at `prices`, then all that is over: what repair will come to."""
        over = np.maximum(cut.usage - self.problem.limits, 0)
        return cut.cost + math.fsum(m * float(over[r]) for r, m in prices.items()), float(over.sum())

    def _offer(self, cut: Cut) -> None:
        if cut.cost < self.cost and not (cut.usage > self.problem.limits).any():
            self.choice, self.cost = cut.choice, cut.cost
            self.goal.offer(cut.choice, cut.cost)

    def _branch(self, masks: dict[int, NDArray[np.bool_]], dual: Dual) -> list[dict[int, NDArray[np.bool_]]]:
        """Two children that split one node's states; none when a single choice is left (already offered)."""
        used = [(w, c.choice) for w, c in zip(dual.weights, dual.cuts, strict=True) if w > 1e-9]
        best: tuple[float, int] | None = None
        for v in range(len(self.problem.nodes)):
            shares: dict[int, float] = {}
            for w, x in used:
                shares[x[v]] = shares.get(x[v], 0.0) + w
            disagreement = 1.0 - max(shares.values(), default=1.0) / max(sum(shares.values()), 1e-300)
            if disagreement > 1e-9:
                score = disagreement * (1.0 + self._held_span(v, list(shares)))
                if best is None or score > best[0]:
                    best = (score, v)
        if best is not None:
            v = best[1]
        else:
            counts = [
                int(masks[v].sum()) if v in masks else self.problem.size(v) for v in range(len(self.problem.nodes))
            ]
            v = int(np.argmax(counts))
            if counts[v] == 1:
                return []
        allowed = masks.get(v, np.ones(self.problem.size(v), bool))
        left = self._split(v, allowed, [x[v] for _, x in used] or [dual.cuts[-1].choice[v]])
        return [{**masks, v: allowed & left}, {**masks, v: allowed & ~left}]

    def _held(self, v: int) -> NDArray[np.float64]:
        arrays = self.problem.arrays
        return np.asarray(sum((arrays[n] for _, n in self.problem.nodes[v].usage), np.zeros(self.problem.size(v))))

    def _held_span(self, v: int, states: list[int]) -> float:
        held = self._held(v)[states]
        return float(held.max() - held.min())

    def _split(self, v: int, allowed: NDArray[np.bool_], states: list[int]) -> NDArray[np.bool_]:
        """By memory half-way between the states used where they differ, else the first state used from the rest."""
        held = self._held(v)
        low, high = held[states].min(), held[states].max()
        if low < high:
            return held <= (low + high) / 2
        chosen = np.zeros(len(allowed), bool)
        chosen[states[0] if allowed[states[0]] else int(np.argmax(allowed))] = True
        return chosen


def minimum_memory(problem: Problem, *, deadline: float | None = None, rounds: int = 60) -> MinimumMemory:
    """Least peak memory over the allowed choices, costs ignored: proven bound, and a choice near it.

    The bound is min_x sum_r m_r use_r(x) maximised over weights m of the rows that sum to one.
    """
    free = _without_costs(problem)
    try:
        reduced = presolve(free, fit=False)
        bound, cuts = _least_peak(reduced, deadline, rounds)
    except Infeasible:
        return MinimumMemory(0, None, ())
    best = min(cuts, key=lambda c: float(c.usage.max(initial=0.0)))
    choice = _lowered(reduced, best, bound, deadline)
    full = reduced.restore(choice)
    achieved = peak_memory(problem, full)
    return MinimumMemory(min(max(0, math.ceil(bound)), achieved), achieved, full)


def _without_costs(problem: Problem) -> Problem:
    """The same problem with all allowed costs zero; its limit is nominal."""
    cleared: dict[int, NDArray[np.int64]] = {}  # equal arrays stay shared

    def clear(costs: NDArray[np.int64]) -> NDArray[np.int64]:
        if id(costs) not in cleared:
            cleared[id(costs)] = np.where(costs >= FORBIDDEN, FORBIDDEN, 0)
        return cleared[id(costs)]

    nodes = [replace(n, costs=clear(n.costs)) for n in problem.nodes]
    return Problem(nodes, [replace(e, costs=clear(e.costs)) for e in problem.edges], limit=0)


def _least_peak(problem: Reduced, deadline: float | None, rounds: int) -> tuple[float, list[Cut]]:
    """Maximises min_x m . use(x) over the simplex of the rows met: (the bound, the choices seen)."""
    search = Lagrangian(problem)

    def evaluate(weights: dict[int, float]) -> tuple[float, Cut]:
        value, cut = search.evaluate(weights, {})
        return value, replace(cut, usage=cut.usage - problem.limits)  # with what presolve took out

    cuts = [evaluate({})[1]]
    if not len(problem.limits):
        return 0.0, cuts
    best = -math.inf
    rows = [int(np.argmax(cuts[0].usage))]
    weights = {rows[0]: 1.0}
    choices: set[tuple[int, ...]] = set()
    for _ in range(rounds):
        value, cut = evaluate(weights)
        cuts.append(cut)
        best = max(best, value / math.fsum(weights.values()) * (1 - 1e-15))
        peak = min(float(c.usage.max()) for c in cuts)
        if peak - best < max(1.0, CLOSE * peak) or search.work > WORK or _late(deadline):
            break
        worst = int(np.argmax(cut.usage))
        known = cut.choice in choices and worst in rows
        choices.add(cut.choice)
        if worst not in rows:
            rows.append(worst)
        found = None if known else game_weights(rows, cuts)  # known: the game already had this cut and row
        if found is None:
            break
        weights = found
    return best, cuts


def _late(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _lowered(problem: Reduced, cut: Cut, bound: float, deadline: float | None) -> tuple[int, ...]:
    """Lowers the peak further by local search towards ever smaller limits, where that is quick."""
    choice = cut.choice
    if len(problem.limits) * sum(map(len, problem.states)) > LOWERED:
        return choice
    for share in (0.02, 0.01, 0.005, 0.002, 0.001):
        peak = float((problem.usage(choice) - problem.limits).max(initial=0.0))
        if peak - bound <= CLOSE * peak or _late(deadline):
            break
        tight = replace(problem, limits=problem.limits + np.floor(peak * (1 - share)))
        found = LocalSearch(tight).improve(choice, {}, sweeps=6)
        if found is not None:
            choice = found
    return choice
