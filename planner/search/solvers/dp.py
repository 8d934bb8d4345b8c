"""Exact elimination, with prices on memory and branch and bound where memory binds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.solver import Found, Solver

if TYPE_CHECKING:
    from planner.search.reduction.reduced import Reduced
    from planner.search.state import State

__all__ = ["SOLVER"]


def _solve(state: State, reduced: Reduced, cutoff: float) -> Found:
    from planner.search.elimination.complete import eliminated

    return eliminated(state, reduced, cutoff)


SOLVER = Solver("dp", "exact elimination alone, with prices on memory and branch and bound", solve=_solve)
