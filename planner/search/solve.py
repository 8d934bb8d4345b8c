"""The one interface to all solvers, and their registry in order of preference.

A solver only proposes: the cost reported is the independent evaluator's, and a choice that the evaluator
refuses is a defect, not an answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from planner.search.control import Control
from planner.search.evaluate import evaluate, least_memory
from planner.search.goal import Goal
from planner.search.lagrangian import Lagrangian
from planner.search.local import LocalSearch
from planner.search.memory import CLOSE_WORK, Bounded, branch_and_bound, minimum_memory
from planner.search.presolve import presolve
from planner.search.problem import Edge, IntArray, Node, Problem, Solution, Status
from planner.search.reduced import Infeasible, Reduced
from planner.search.restricted import Rounds
from planner.search.tables import TableStore, TooLarge

__all__ = ["SOLVERS", "Search", "SolverName", "solve"]

# Entries of all tables together that elimination may fill before "auto" turns to message passing: half a second.
AUTO_ENTRIES = 1 << 26

SolverName = Literal["auto", "dp", "ilp"]
WORK = 10**9  # table entries that branch and bound may compute: some 20 s
GLANCE = 5  # evaluations of the dual at the first glance
REPAIRS = 2  # sweeps of local search for a first choice
ILP_PAIRS = 200_000  # with more pairs of states an integer program does not improve on what is known


def solve(
    problem: Problem,
    *,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    progress: Callable[[str], None] | None = None,
    control: Control | None = None,
    start: Sequence[int] | None = None,
) -> Solution:
    """The best choice found and a proven bound.  Deterministic where there is no `time_limit` (seconds).

    `control` takes the place of `time_limit` and `progress`; `start` is a choice to begin with, ignored where it is
    not valid.  `infeasible` is reported only when proven; `memory_bound` is then given if memory is what forbids.
    """
    if control is None:
        control = Control(time_limit, say=progress or (lambda _: None))
    return Search(problem, control, solver=solver, start=start).run()


@dataclass(frozen=True, slots=True)
class _Found:
    bounded: Bounded
    solver: str


class Search:
    """The search on one problem in stages: a cheap `glance` for the bound, then `run` to the end.

    `bound` always holds for every valid choice; `infeasible` says that there is none.
    """

    def __init__(
        self,
        problem: Problem,
        control: Control,
        *,
        solver: SolverName = "auto",
        start: Sequence[int] | None = None,
        tolerance: float = 0.0,
        like: Reduced | None = None,
    ) -> None:
        """`like`: as of `presolve`."""
        self.problem, self.control, self.solver, self.tolerance = problem, control, solver, tolerance
        self.used: str = solver
        self.choice: tuple[int, ...] | None = None
        self.cost: int | None = None
        self.infeasible = False
        self.memory_bound: int | None = None
        self.prices: Mapping[int, float] = {}
        self.learned: dict[int, float] = {}  # memory prices by instant behind a bound from elsewhere
        self.rounds: Rounds | None = None  # where elimination is too wide
        self.bound = _trivial_bound(problem)
        self.reduced: Reduced | None = None
        if problem.limit is not None and (least := least_memory(problem)) > problem.limit:
            self.infeasible, self.memory_bound = True, least
            return
        try:
            self.reduced = presolve(problem, like=like)
        except Infeasible:
            self._impossible()
            return
        control.say(f"presolved to {len(self.reduced.nodes)} of {len(problem.nodes)} nodes")
        if start is not None and (cost := evaluate(problem, start)) is not None:
            self.choice, self.cost = tuple(start), cost
            control.offer(self.choice, cost, "start")

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do."""
        return self.infeasible or (self.cost is not None and self.bound >= self.cost)

    def glance(self, *, choose: bool = False, narrow: bool = True, enough: float = math.inf) -> None:
        """A first bound, in about the time that pricing takes; often it is the optimum already.  `choose` asks for a
        first choice as well, which may take as long again; `narrow` says whether elimination is worth trying; from
        `enough` on the bound is not improved."""
        if self.infeasible or self.reduced is None:
            return
        try:
            if self.solver == "auto":
                self._glance(self.reduced, choose, narrow, enough)
        except Infeasible:
            self._impossible()

    def choose(self) -> None:
        """A first choice after a glance that was for the bound alone, where elimination was too wide to give one."""
        if self.rounds is not None and self.cost is None:
            self.rounds.attempt()
            self._prove(self.rounds.bound, "messages")

    def _glance(self, reduced: Reduced, choose: bool, narrow: bool, enough: float) -> None:
        dual = Lagrangian(reduced, store=TableStore(total_cap=AUTO_ENTRIES, stop=lambda: self.control.stopped))
        try:
            if not narrow and reduced.nodes:
                raise TooLarge("a problem like this was too wide for elimination")
            if not len(reduced.limits):
                value, cut = dual.evaluate({}, {})
                self._offer(cut.choice, cut.cost, "elimination")
                self._prove(value, "elimination")
                return
            found = dual.maximise(
                {}, {}, rounds=GLANCE, enough=math.inf, spread=_spread(reduced), stop=lambda: self.control.stopped
            )
        except TooLarge as reason:
            self.control.say(f"{reason}: message passing and elimination among promising states instead")
            self.rounds = Rounds(reduced, self._goal(enough / reduced.scale + 1, "messages"))
            self.rounds.glance(choose=choose and self.cost is None)
            self._prove(self.rounds.bound, "messages")
            return
        self.prices = found.prices
        for cut in found.cuts:
            if not (cut.usage > reduced.limits).any():
                self._offer(cut.choice, cut.cost, "elimination")
        self._prove(found.bound, "elimination")
        if choose and self.cost is None:
            leanest = min(found.cuts, key=lambda cut: float(np.maximum(cut.usage - reduced.limits, 0).sum()))
            repaired = LocalSearch(reduced).improve(leanest.choice, {}, sweeps=REPAIRS)
            if repaired is not None:
                self._offer(repaired, -math.inf, "elimination")

    def run(self, *, cutoff: int | None = None) -> Solution:
        """Searches on until the gap is closed, limits are reached, or no choice below `cutoff` can be left."""
        if self.reduced is not None and not self.closed:
            limit = math.inf if cutoff is None else cutoff / self.reduced.scale
            try:
                found = SOLVERS[self.solver](self, self.reduced, limit)
                self.used = found.solver
                self.prices = found.bounded.prices or self.prices
                self._prove(found.bounded.bound, found.solver)
                if found.bounded.choice is not None:
                    self._offer(found.bounded.choice, -math.inf, found.solver)
            except Infeasible:
                if cutoff is None:
                    self._impossible()
                else:
                    self._prove(limit, self.used)
            except TooLarge as reason:
                self.control.say(f"{reason}: no answer by elimination")
            if self.choice is None and not self.infeasible and self.reduced.memory_scale > 1:
                self._choose_rounded_up(self.reduced.memory_scale)
        return self.solution

    @property
    def solution(self) -> Solution:
        if self.infeasible:
            return Solution("infeasible", solver=self.solver, memory_bound=self.memory_bound)
        if self.choice is None or self.cost is None:
            return Solution("unknown", bound=self.bound, solver=self.used)
        status: Status = "optimal" if self.bound >= self.cost else "feasible"
        return Solution(status, self.choice, self.cost, min(self.bound, self.cost), self.used)

    def learn(self, bound: int, prices: Mapping[int, float]) -> None:
        """Takes a proven bound from elsewhere, and the memory prices by instant at which it was found."""
        if bound > self.bound:
            self.bound, self.learned = bound, dict(prices)

    @property
    def instant_prices(self) -> dict[int, float]:
        """Memory prices near which the bound was found, by instant, in cost per byte of the original problem."""
        if self.reduced is None:
            return {}
        if self.learned:
            return self.learned
        prices = self.prices or ({} if self.rounds is None else self.rounds.prices)
        return {self.reduced.instants[r]: p * self.reduced.scale for r, p in prices.items() if p > 0}

    def _goal(self, cutoff: float, solver: str) -> Goal:
        return Goal(
            stop=lambda: self.control.stopped,
            cutoff=cutoff,
            tolerance=self.tolerance,
            offer=lambda choice, cost: self._offer(choice, cost, solver),
        )

    def _offer(self, choice: Sequence[int], cost: float, solver: str) -> None:
        """Takes a choice of the reduced problem; `cost` is what its solver believes."""
        assert self.reduced is not None
        if self.cost is not None and cost * self.reduced.scale >= self.cost:
            return
        full = self.reduced.restore(choice)
        judged = evaluate(self.problem, full)
        if judged is None and self.reduced.memory_scale > 1:
            return  # it fits but for what rounding took away
        if judged is None:
            raise AssertionError(f"solver {solver} proposed a choice that the evaluator refuses")
        if self.cost is None or judged < self.cost:
            self.choice, self.cost, self.used = full, judged, solver
            self.control.offer(full, judged, solver)

    def _prove(self, value: float, solver: str) -> None:
        """Takes a bound of the reduced problem, rounded up: costs are integers."""
        assert self.reduced is not None
        if math.isfinite(value):
            bound = math.ceil(value) * self.reduced.scale
            if bound > self.bound:
                self.bound, self.learned = bound, {}
            self.control.prices = self.instant_prices
            self.control.prove(min(self.bound, self.cost) if self.cost is not None else self.bound, solver)

    def _choose_rounded_up(self, unit: int) -> None:
        """Looks for a choice where every usage is rounded up to a multiple of `unit`: what fits there fits."""
        rounded: dict[int, IntArray] = {}  # equal arrays stay shared

        def up(usage: IntArray | None) -> IntArray | None:
            if usage is None:
                return None
            if id(usage) not in rounded:
                rounded[id(usage)] = (usage // unit + (usage % unit > 0)) * unit
            return rounded[id(usage)]

        nodes = [replace(n, usage=up(n.usage)) for n in self.problem.nodes]
        edges = [replace(e, usage=up(e.usage)) for e in self.problem.edges]
        inner = Control(self.control.left, cancel=self.control.cancel, say=self.control.say)
        found = Search(Problem(nodes, edges, self.problem.limit), inner, solver=self.solver).run()
        if found.choice and (cost := evaluate(self.problem, found.choice)) is not None:
            self.choice, self.cost, self.used = found.choice, cost, found.solver
            self.control.offer(found.choice, cost, found.solver)

    def _impossible(self) -> None:
        self.infeasible = True
        if self.problem.limit is None:
            return
        try:
            least = minimum_memory(self.problem, deadline=self.control.deadline)
        except TooLarge:  # the proof stands; only the bound is no better than the limit itself
            self.memory_bound = self.problem.limit + 1
            return
        if least.achieved is not None:
            self.memory_bound = max(self.problem.limit + 1, least.lower_bound)

    def eliminated(self, reduced: Reduced, cutoff: float, stop: Callable[[], bool] | None = None) -> _Found:
        """Elimination alone where no memory row is left; else its Lagrangian with branch and bound."""
        if not len(reduced.limits):
            store = TableStore(stop=lambda: self.control.stopped)
            value, cut = Lagrangian(reduced, store=store).evaluate({}, {})
            return _Found(Bounded(cut.choice, value), "elimination")
        self.control.say(f"memory binds at up to {len(reduced.limits)} instants: Lagrangian and branch and bound")
        goal = self._goal(cutoff, "elimination+lagrangian")
        if stop is not None:
            goal = replace(goal, stop=lambda: self.control.stopped or stop())
        found = branch_and_bound(reduced, goal, work=WORK, close=CLOSE_WORK, prices=self.prices)
        return _Found(found, "elimination+lagrangian")


def _dp(search: Search, reduced: Reduced, cutoff: float) -> _Found:
    return search.eliminated(reduced, cutoff)


def _solve_ilp(reduced: Reduced, control: Control, hint: Sequence[int] | None = None) -> Bounded:
    from planner.search.ilp import solve_ilp  # OR-Tools takes half a second to load, and most searches need none of it

    return solve_ilp(reduced, time_limit=control.left, hint=hint)


def _ilp(search: Search, reduced: Reduced, cutoff: float) -> _Found:
    return _Found(_solve_ilp(reduced, search.control), "ilp")


def _auto(search: Search, reduced: Reduced, cutoff: float) -> _Found:
    """Elimination; message passing where its tables grow too large; the ILP to close the gap that is left."""
    if search.rounds is None:
        search.glance()
    if search.closed:
        return _Found(Bounded(None, search.bound / reduced.scale), search.used)
    if search.rounds is not None:
        search.rounds.goal = search._goal(cutoff, "messages+elimination")
        return _Found(search.rounds.run(), "messages+elimination")
    pairs = sum(reduced.arrays[f.costs].size for _, _, f in reduced.edges)
    small = pairs <= ILP_PAIRS
    left = search.control.left
    half = None if left is None or not small else time.monotonic() + 0.5 * left
    first = search.eliminated(reduced, cutoff, None if half is None else lambda: time.monotonic() > half)
    cost = math.inf if first.bounded.choice is None else reduced.cost(first.bounded.choice)
    goal = search._goal(cutoff, "ilp")
    if goal.closed(first.bounded.bound, cost) or math.ceil(first.bounded.bound) >= cost or search.control.stopped:
        return first
    if first.bounded.choice is not None and not small:
        return first
    search.control.say(f"gap left at {cost - first.bounded.bound:.0f}: integer program from there")
    second = _solve_ilp(reduced, search.control, first.bounded.choice)
    other = math.inf if second.choice is None else reduced.cost(second.choice)
    choice = second.choice if other < cost else first.bounded.choice
    return _Found(Bounded(choice, max(first.bounded.bound, second.bound)), f"{first.solver}+ilp")


SOLVERS: Mapping[SolverName, Callable[[Search, Reduced, float], _Found]] = {"auto": _auto, "dp": _dp, "ilp": _ilp}


def _spread(reduced: Reduced) -> float:
    """An upper bound on what any allowed choice costs."""
    arrays = reduced.arrays
    factors = (*reduced.nodes, *(f for _, _, f in reduced.edges))
    return reduced.offset + sum(max(0.0, arrays.high(f.costs)) for f in factors)


def _trivial_bound(problem: Problem) -> int:
    least: dict[int, int] = {}  # arrays are shared by layers that look alike
    items: tuple[Node | Edge, ...] = (*problem.nodes, *problem.edges)
    for item in items:
        if id(item.costs) not in least:
            least[id(item.costs)] = int(item.costs.min())
    return sum(least[id(item.costs)] for item in items)
