"""The portfolio for problems beyond the exact solvers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.solver import Solver

if TYPE_CHECKING:
    from planner.search.control import Control
    from planner.search.problem import Problem, Solution

__all__ = ["SOLVER"]


def _solve(problem: Problem, control: Control, *, seed: int) -> Solution:
    from planner.search.large import solve_large

    return solve_large(problem, control, seed=seed)


SOLVER = Solver(
    "large",
    "contraction, then the dual, choices and an integer program side by side; auto takes it for large problems",
    whole=_solve,
    needs=("planner.search.large",),
)
