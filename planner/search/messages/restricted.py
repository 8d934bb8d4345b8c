"""Where exact elimination is too wide: bounds by message passing, choices by elimination among promising states.

Every node keeps the states that the messages score best, together with those of the best choice known; the problem
restricted to them is eliminated exactly.  Where its choice exceeds the memory limits, the restricted problem's own
dual gives the memory prices for the next sweeps.  States that the bound proves too dear for any better choice are
taken out for good, so that bound and choice meet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.goal import Goal
from planner.search.messages.trws import Certified, Messages
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.memory import Bounded, branch_and_bound
from planner.search.reduction.contract import Contracted, contract_further
from planner.search.reduction.reduced import Factor, Infeasible, Reduced

__all__ = ["Rounds", "restrict", "solve_restricted"]

SWEEPS = 40  # between two attempts at a choice
FIRST_SWEEPS = 80
GLANCE = 20
GLANCE_CONTRACTED = 160  # of problems that are a tenth as large
ROUNDS = 20
WINDOWS, PASSES = 14, 1  # windows that a choice is improved in, overlapping by half, and how often
SMALLEST_WINDOW = 60  # nodes
STALE = 3  # rounds in which bound and choice hardly approach each other
SLOW = 0.05  # share of the gap
WIDEST = 12
FEW = 6  # states left per node on average at which all of them are tried
BRANCH_WORK = 2 * 10**8  # of the restricted problem's dual where memory binds: some seconds
ENTRIES = 1 << 21  # of one table: restricted problems are many, so each must stay cheap
IN_ALL = 1 << 26


def restrict(problem: Reduced, states_left: Sequence[NDArray[np.int64]]) -> Reduced:
    """The problem with only the states `kept[v]` of each node."""
    arrays = problem.arrays
    numbers = [arrays.add(k) for k in states_left]

    def node(factor: Factor, v: int) -> Factor:
        usage = tuple((span, arrays.take(a, 0, numbers[v])) for span, a in factor.usage)
        return Factor(arrays.take(factor.costs, 0, numbers[v]), usage)

    def edge(factor: Factor, u: int, v: int) -> Factor:
        def both(a: int) -> int:
            return arrays.take(arrays.take(a, 0, numbers[u]), 1, numbers[v])

        return Factor(both(factor.costs), tuple((span, both(a)) for span, a in factor.usage))

    return replace(
        problem,
        states=tuple(s[k] for s, k in zip(problem.states, states_left, strict=True)),
        nodes=tuple(node(f, v) for v, f in enumerate(problem.nodes)),
        edges=tuple((u, v, edge(f, u, v)) for u, v, f in problem.edges),
    )


def solve_restricted(problem: Reduced, goal: Goal, *, start: tuple[int, ...] | None = None) -> Bounded:
    """The best choice found within the limits (None: none) and a proven bound.  `start` is such a choice."""
    return Rounds(problem, goal, start, contracting=True).run()


@dataclass(frozen=True, slots=True)
class _Attempt:
    """`bound` holds for every choice better than the best known: -inf unless no state was left out."""

    choice: tuple[int, ...] | None
    prices: Mapping[int, float]
    bound: float


class Rounds:
    """Sweeps and attempts in turn; `bound` and `choice` are the best so far."""

    def __init__(
        self, problem: Reduced, goal: Goal, start: tuple[int, ...] | None = None, *, contracting: bool = False
    ) -> None:
        """`contracting`: whether it is worth a second or so to contract the problem."""
        self.goal, self.contracting = goal, contracting
        self.contracted: Contracted | None = None
        self.known: tuple[int, ...] | None = None  # the best, where it is none of what contraction leaves
        self._begin(problem, start)
        self.bound = -math.inf
        self.prices: Mapping[int, float] = {}
        self.windows = PASSES

    def _begin(self, problem: Reduced, best: tuple[int, ...] | None) -> None:
        """`best`: a choice of this problem."""
        self.problem, self.best = problem, best
        self.cost = math.inf if best is None else problem.cost(best)
        self.messages = Messages(problem, _beyond(problem))
        self.keep = np.ones(int(self.messages.layout.start[-1]), bool)
        self.width, self.widest = 2, WIDEST
        self.window = max(SMALLEST_WINDOW, len(problem.nodes) // WINDOWS)

    def _contract(self) -> None:
        """Goes on with what contraction leaves, where no memory is counted: else most nodes hold some, and stay."""
        if self.contracting and not len(self.problem.limits) and not self._over:
            self.contracting = False
            known, cost = self.best, self.cost
            self.contracted = contract_further(self.problem, self.goal.stop)
            self._begin(self.contracted.reduced, None if known is None else self.contracted.left_of(known))
            if self.best is None and known is not None:  # one of its states gave way to another of the same cost
                self.known, self.cost = known, cost

    @property
    def choice(self) -> tuple[int, ...] | None:
        return self.known if self.best is None else self._restored(self.best)

    def _restored(self, choice: tuple[int, ...]) -> tuple[int, ...]:
        return choice if self.contracted is None else self.contracted.restore(choice)

    def glance(self, *, choose: bool = False) -> None:
        """A first bound, and a first choice where `choose` asks for it; a closer one where it is known how much is
        enough, and that was not."""
        self._sweep(GLANCE)
        if math.isfinite(self.goal.cutoff) and not self._over:
            self._contract()
            if self.contracted is not None:
                self._sweep(GLANCE_CONTRACTED)
        if choose:
            self.attempt()

    def attempt(self) -> None:
        """A first choice, by what was learned so far."""
        if not self._over and (attempt := self._attempt()) is not None:
            self._offer(attempt.choice)

    def run(self) -> Bounded:
        """To the end: the gap closed or good, the goal's word, or nothing gained any more."""
        stale = 0
        self._contract()
        for number in range(ROUNDS):
            before = self.bound, self.cost
            still, certified = self._sweep(SWEEPS if number else FIRST_SWEEPS)
            if self._over:
                break
            attempt = self._attempt()
            if attempt is not None:
                self._offer(attempt.choice)
                self.bound = max(self.bound, min(attempt.bound, self.cost))
            if math.isinf(self.bound) and self.bound > 0:
                raise Infeasible  # not one state was left out
            if self._slow(before) and not self.goal.good(self.bound, self.cost):
                self._slide()
            if self._over:
                break
            self._take_out(certified)
            if self.goal.good(self.bound, self.cost):
                self._settle()
                break
            stale = stale + 1 if self._slow(before) and (still or math.isfinite(self.cost)) else 0
            if stale >= STALE:
                break
            if attempt is not None and attempt.prices != self.prices:
                self.prices = attempt.prices
                self.messages.set_prices(self.prices)
                self.messages.forbid(self.keep)
        return Bounded(self.choice, self.bound, self.prices)

    def _slow(self, before: tuple[float, float]) -> bool:
        """Whether bound and cost came hardly closer to each other."""
        bound, cost = before
        if math.isinf(self.cost):
            return self.bound - bound <= SLOW * abs(self.bound)
        return (self.bound - bound) + (cost - self.cost) <= SLOW * (self.cost - self.bound)

    def _slide(self) -> None:
        """Improves the best choice window by window: inside, nodes may take any promising state; outside they stay."""
        if self.best is None or self.windows == 0:
            return
        self.windows -= 1
        before = self.cost
        count = len(self.problem.nodes)
        begin = 0
        while begin < count and not self._over:
            wide, _ = self._promising(WIDEST)
            end = begin + self.window
            states_left = [wide[v] if begin <= v < end else np.array([x]) for v, x in enumerate(self.best)]
            try:
                found = _best(restrict(self.problem, states_left), self.goal)
            except TooLarge:
                if self.window <= SMALLEST_WINDOW:
                    begin += self.window // 2
                self.window = max(SMALLEST_WINDOW, self.window // 2)
                continue
            except Infeasible:  # an early end of the solver: the best choice itself is among the states
                return
            if found.choice is not None:
                self._offer(tuple(int(states_left[v][x]) for v, x in enumerate(found.choice)))
            begin += max(1, self.window // 2)
        if before - self.cost <= SLOW * (before - self.bound):
            self.windows = 0

    def _settle(self) -> None:
        """Proves the optimum where next to nothing is left beside the best choice."""
        if (attempt := self._among(None)) is not None:
            self._offer(attempt.choice)
            self.bound = max(self.bound, min(attempt.bound, self.cost))

    def _sweep(self, sweeps: int) -> tuple[bool, Certified]:
        still = self.messages.run(sweeps=sweeps, enough=self.goal.target(self.cost), stop=self.goal.stop)
        certified = self.messages.certified()
        # States taken out cannot be in a choice better than the one known: below its cost, the bound holds.
        self.bound = max(self.bound, min(certified.bound, self.cost))
        return still, certified

    @property
    def _over(self) -> bool:
        return self.goal.closed(self.bound, self.cost) or self.goal.stop()

    def _offer(self, choice: tuple[int, ...] | None) -> None:
        if choice is not None and (cost := self.problem.cost(choice)) < self.cost:
            self.best, self.cost = choice, cost
            self.goal.offer(self._restored(choice), cost)

    def _take_out(self, certified: Certified) -> None:
        """States through which every choice costs more than the best known."""
        if math.isfinite(self.cost):
            keep = self.keep & (certified.bound + certified.above <= self.cost)
            if keep.sum() < self.keep.sum():
                self.keep = keep
                self.messages.forbid(keep)

    def _attempt(self) -> _Attempt | None:
        """Eliminates among as many promising states as the tables allow, among all that are left where they are few."""
        if self.keep.sum() <= FEW * len(self.problem.nodes) and (attempt := self._among(None)) is not None:
            return attempt
        while self.width:
            attempt = self._among(self.width)
            if attempt is not None:
                self.width = min(self.widest, self.width + 1)
                return attempt
            self.widest = self.width = self.width - 1
        self.width = self.widest = 1
        return None

    def _among(self, width: int | None) -> _Attempt | None:
        """The best choice among `width` states of each node (None: all that are left); None where tables are too
        large."""
        states_left, complete = self._promising(width)
        try:
            found = _best(restrict(self.problem, states_left), self.goal)
        except TooLarge:
            return None
        except Infeasible:
            return _Attempt(None, self.prices, math.inf if complete else -math.inf)
        choice = None if found.choice is None else tuple(int(states_left[v][x]) for v, x in enumerate(found.choice))
        return _Attempt(choice, found.prices, found.bound if complete else -math.inf)

    def _promising(self, width: int | None) -> tuple[list[NDArray[np.int64]], bool]:
        """Per node the best scored states, the best known choice's and, where memory counts, the smallest; and whether
        none that is left is missing."""
        start = self.messages.layout.start
        states_left, complete = [], True
        for v, factor in enumerate(self.problem.nodes):
            left = np.flatnonzero(self.keep[start[v] : start[v + 1]])
            scores = self.messages.scores[start[v] : start[v + 1]][left]
            states = set(left[np.argsort(scores, kind="stable")[:width]].tolist())
            complete &= len(states) == len(left)
            if self.best is not None:
                states.add(self.best[v])
            if factor.usage and len(left):
                held = np.sum([self.problem.arrays[number][left] for _, number in factor.usage], axis=0)
                states.add(int(left[np.lexsort((scores, held))[0]]))
            states_left.append(np.array(sorted(states), dtype=np.int64))
        return states_left, complete


def _best(problem: Reduced, goal: Goal) -> Bounded:
    """The restricted problem's best choice and the prices of its root."""
    store = TableStore(size_cap=ENTRIES, work_cap=ENTRIES << 6, total_cap=IN_ALL, stop=goal.stop)
    free = Lagrangian(problem, store=store).evaluate({}, {})[1]
    if not (free.usage > problem.limits).any():
        return Bounded(free.choice, free.cost)
    return branch_and_bound(problem, Goal(stop=goal.stop, tolerance=1e-4), work=BRANCH_WORK, close=0)


def _beyond(problem: Reduced) -> float:
    """An integer above what any allowed choice costs."""
    arrays = problem.arrays
    factors = [*problem.nodes, *(f for _, _, f in problem.edges)]
    return 4 * math.ceil(abs(problem.offset) + math.fsum(max(0.0, arrays.high(f.costs)) for f in factors)) + 1
