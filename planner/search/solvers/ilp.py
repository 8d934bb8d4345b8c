"""The integer program alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.solver import Found, Solver

if TYPE_CHECKING:
    from planner.search.reduction.reduced import Reduced
    from planner.search.state import State

__all__ = ["SOLVER"]


def _solve(state: State, reduced: Reduced, cutoff: float) -> Found:
    from planner.search.program.ilp import solve_ilp

    return Found(solve_ilp(reduced, time_limit=state.control.left), "ilp")


SOLVER = Solver("ilp", "the integer program alone, by CP-SAT", solve=_solve, needs=("ortools",))
