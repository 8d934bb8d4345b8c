"""The portfolio: contraction, then the dual, choices and an integer program side by side.

With a time limit the dual and the search for choices run in a thread each (the kernels release the interpreter), the
integer program in a process of its own where the contracted problem is small enough for it.  Without one they take
turns, each with a fixed amount of work, so that the answer depends on the problem and the seed alone.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

import numpy as np

from planner.search.control import Control
from planner.search.evaluate import least_memory
from planner.search.large.contract import Interrupted, contract
from planner.search.large.incumbent import Incumbent
from planner.search.large.workers import Team, take_turns
from planner.search.native.library import library
from planner.search.problem import Problem, Solution
from planner.search.reduction.reduced import Infeasible
from planner.search.solve import Search

__all__ = ["solve_large"]

NAME = "portfolio"
CONTRACTING = 0.5  # share of the time that contraction may take: what it leaves out costs the search more
PAUSE = 0.02  # seconds between looks at the clock


def solve_large(problem: Problem, control: Control, *, seed: int = 0) -> Solution:
    """The best choice and a proven bound, all of them also left with `control`.

    `infeasible` only when proven.  Deterministic for equal seeds where `control` has no time limit.
    Problems whose edges hold memory after contraction, and machines without the compiled kernels, are left to the
    solvers of `planner.search.solve`, and `control.say` says so.
    """
    if problem.limit is not None and (least := least_memory(problem)) > problem.limit:
        return Solution("infeasible", solver="presolve", memory_bound=least)
    if library() is None:
        return _exact(problem, control, "the compiled kernels are missing")
    try:
        contracted = contract(problem, _short_of_time(control))
    except Interrupted:
        return _solution(control)
    except Infeasible:
        return _exact(problem, control, "presolve finds no valid choice")
    reduced = contracted.reduced
    control.say(f"contracted to {len(reduced.nodes)} of {len(problem.nodes)} nodes, {len(reduced.edges)} edges")
    if control.stopped:
        return _solution(control)
    if any(factor.usage for _, _, factor in reduced.edges):
        return _exact(problem, control, "edges hold memory")
    incumbent = Incumbent(problem, control, contracted)
    if not reduced.nodes:
        incumbent.offer(np.zeros(0, np.int64), float(reduced.offset), NAME)
        incumbent.prove(float(reduced.offset), NAME)
        return _solution(control)
    team = Team(incumbent, seed)
    if control.time_limit is None:
        take_turns(team)
    else:
        _side_by_side(team, control)
    if team.infeasible:
        return _exact(problem, control, "the integer program finds no valid choice")
    team.tell_prices()
    return _solution(control)


def _short_of_time(control: Control) -> Callable[[], bool]:
    """Whether contraction should end: what is left of the time goes to the search."""
    left = control.left
    if left is None:
        return lambda: control.cancel.is_set()
    end = time.monotonic() + CONTRACTING * left
    return lambda: control.cancel.is_set() or time.monotonic() > end


def _side_by_side(team: Team, control: Control) -> None:
    threads = [threading.Thread(target=work, daemon=True) for work in (team.follow_dual, team.search_choices)]
    for thread in threads:
        thread.start()
    try:
        while not team.over and any(t.is_alive() for t in threads):
            time.sleep(PAUSE)
            team.mind_program()
    finally:
        team.end()
    for thread in threads:
        thread.join(1.0)
    if team.failure is not None:
        raise team.failure


def _exact(problem: Problem, control: Control, reason: str) -> Solution:
    control.say(f"{reason}: the exact solvers instead")
    exact = Search(problem, control, start=control.best)
    found = exact.run()
    if found.status != "infeasible":
        control.prove(found.bound, found.solver)
    return found


def _solution(control: Control) -> Solution:
    bound = 0 if control.bound is None or not math.isfinite(control.bound) else control.bound
    if control.best is None or control.cost is None:
        return Solution("unknown", bound=bound, solver=NAME)
    if bound >= control.cost:
        return Solution("optimal", control.best, control.cost, control.cost, NAME)
    return Solution("feasible", control.best, control.cost, bound, NAME)
