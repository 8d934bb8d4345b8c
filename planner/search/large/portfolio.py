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

from planner.native.library import library
from planner.search.control import Control
from planner.search.evaluate import least_memory
from planner.search.large.incumbent import Incumbent
from planner.search.large.workers import Team
from planner.search.problem import Problem, Solution
from planner.search.reduction.contract import Interrupted, contract
from planner.search.reduction.reduced import Infeasible
from planner.search.solve import Search

__all__ = ["solve_large"]

NAME = "portfolio"
CONTRACTING = 0.5  # share of the time that contraction may take: what it leaves out costs the search more
PAUSE = 0.02  # seconds between looks at the clock
JOINING = 0.3  # seconds in which threads that were told to stop do so


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
        _run(team, team.take_turns)
    else:
        _run(team, team.follow_dual, team.search_choices)
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


def _run(team: Team, *works: Callable[[], None]) -> None:
    """Each in a thread, while this one looks at the clock and for a cancellation."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        while not team.over and any(t.is_alive() for t in threads):
            for thread in threads:
                thread.join(PAUSE)
            if team.timed:
                team.mind_program()
    finally:
        team.end()
    late = time.monotonic() + JOINING
    for thread in threads:
        thread.join(max(0.0, late - time.monotonic()))
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
    best, cost, proven = control.found()
    bound = 0 if proven is None or not math.isfinite(proven) else proven
    if best is None or cost is None:
        return Solution("unknown", bound=bound, solver=NAME)
    if bound >= cost:
        return Solution("optimal", best, cost, cost, NAME)
    return Solution("feasible", best, cost, bound, NAME)
