"""The one interface to all solvers, and their registry in order of preference.

A solver only proposes: the cost reported is the independent evaluator's, and a choice that the evaluator
refuses is a defect, not an answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from planner.search.evaluate import evaluate, least_memory
from planner.search.ilp import solve_ilp
from planner.search.lagrangian import Lagrangian
from planner.search.memory import Bounded, branch_and_bound, minimum_memory
from planner.search.presolve import presolve
from planner.search.problem import Problem, Solution, Status
from planner.search.reduced import Infeasible, Reduced
from planner.search.restricted import solve_restricted
from planner.search.tables import TableStore, TooLarge

__all__ = ["SOLVERS", "Progress", "SolverName", "solve"]

# Entries of all tables together that elimination may fill before "auto" turns to message passing: some ten seconds.
AUTO_ENTRIES = 1 << 30

SolverName = Literal["auto", "dp", "ilp"]
Progress = Callable[[str], None]
WORK = 3 * 10**9  # table entries that branch and bound may compute: some 20 s
ILP_PAIRS = 200_000  # with more pairs of states an integer program does not improve on what is known


@dataclass(frozen=True, slots=True)
class _Effort:
    """`deadline` on the monotonic clock (None: limits in work alone) and where to tell of progress."""

    deadline: float | None
    progress: Progress

    @property
    def left(self) -> float | None:
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True, slots=True)
class _Found:
    bounded: Bounded
    solver: str


def _dp(problem: Reduced, effort: _Effort, store: TableStore | None = None) -> _Found:
    """Elimination alone where no memory row is left; else its Lagrangian with branch and bound."""
    if not len(problem.limits):
        value, cut = Lagrangian(problem, store=store).evaluate({}, {})
        return _Found(Bounded(cut.choice, value), "elimination")
    effort.progress(f"memory binds at up to {len(problem.limits)} instants: Lagrangian and branch and bound")
    found = branch_and_bound(problem, deadline=effort.deadline, work=WORK)
    return _Found(found, "elimination+lagrangian")


def _ilp(problem: Reduced, effort: _Effort) -> _Found:
    return _Found(solve_ilp(problem, time_limit=effort.left), "ilp")


def _auto(problem: Reduced, effort: _Effort) -> _Found:
    """Elimination; the ILP where its tables grow too large, or to close the gap that it leaves."""
    pairs = sum(problem.arrays[f.costs].size for _, _, f in problem.edges)
    both = len(problem.limits) > 0 and pairs <= ILP_PAIRS
    shared = effort
    if effort.left is not None and both:
        shared = _Effort(time.monotonic() + 0.5 * effort.left, effort.progress)
    try:
        first = _dp(problem, shared, TableStore(total_cap=AUTO_ENTRIES))
    except TooLarge as reason:
        effort.progress(f"{reason}: message passing and elimination among promising states instead")
        return _Found(solve_restricted(problem, None, deadline=effort.deadline), "messages+elimination")
    cost = math.inf if first.bounded.choice is None else problem.cost(first.bounded.choice)
    if math.ceil(first.bounded.bound) >= cost:
        return first
    if first.bounded.choice is not None and not both:
        return first
    effort.progress(f"gap left at {cost - first.bounded.bound:.0f}: integer program from there")
    second = solve_ilp(problem, time_limit=effort.left, hint=first.bounded.choice)
    bound = max(first.bounded.bound, second.bound)
    other = math.inf if second.choice is None else problem.cost(second.choice)
    choice = second.choice if other < cost else first.bounded.choice
    return _Found(Bounded(choice, bound), f"{first.solver}+ilp")


SOLVERS: Mapping[SolverName, Callable[[Reduced, _Effort], _Found]] = {"auto": _auto, "dp": _dp, "ilp": _ilp}


def solve(
    problem: Problem,
    *,
    solver: SolverName = "auto",
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Solution:
    """The best choice found and a proven bound.  Deterministic where `time_limit` (seconds) is None.

    `infeasible` is reported only when proven; `memory_bound` is then given if memory is what forbids.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    effort = _Effort(deadline, progress or (lambda _: None))
    if problem.limit is not None:
        least = least_memory(problem)
        if least > problem.limit:
            return Solution("infeasible", solver=solver, memory_bound=least)
    try:
        reduced = presolve(problem)
        effort.progress(f"presolved to {len(reduced.nodes)} of {len(problem.nodes)} nodes")
        found = SOLVERS[solver](reduced, effort)
    except Infeasible:
        return _infeasible(problem, solver, deadline)
    except TooLarge as reason:
        effort.progress(f"{reason}: no answer by elimination")
        return Solution("unknown", bound=_trivial_bound(problem), solver=solver)
    bound = _bound(found.bounded.bound, reduced, problem)
    if found.bounded.choice is None:
        return Solution("unknown", bound=bound, solver=found.solver)
    choice = reduced.restore(found.bounded.choice)
    cost = evaluate(problem, choice)
    if cost is None:
        raise AssertionError(f"solver {found.solver} proposed a choice that the evaluator refuses")
    status: Status = "optimal" if bound >= cost else "feasible"
    return Solution(status, choice, cost, min(bound, cost), found.solver)


def _bound(value: float, reduced: Reduced, problem: Problem) -> int:
    """The bound in the problem's units, rounded up: costs are integers."""
    return math.ceil(value) * reduced.scale if math.isfinite(value) else _trivial_bound(problem)


def _trivial_bound(problem: Problem) -> int:
    return sum(int(item.costs.min()) for item in problem.nodes) + sum(int(e.costs.min()) for e in problem.edges)


def _infeasible(problem: Problem, solver: str, deadline: float | None) -> Solution:
    if problem.limit is None:
        return Solution("infeasible", solver=solver)
    try:
        least = minimum_memory(problem, deadline=deadline)
    except TooLarge:  # the proof stands; only the bound is no better than the limit itself
        return Solution("infeasible", solver=solver, memory_bound=problem.limit + 1)
    if least.achieved is None:
        return Solution("infeasible", solver=solver)
    return Solution("infeasible", solver=solver, memory_bound=max(problem.limit + 1, least.lower_bound))
