"""Each of the others where it does best: the default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.solver import Found, Solver

if TYPE_CHECKING:
    from planner.search.reduction.reduced import Reduced
    from planner.search.state import State

__all__ = ["SOLVER"]


def _solve(state: State, reduced: Reduced, cutoff: float) -> Found:
    from planner.search.automatic import solve

    return solve(state, reduced, cutoff)


def _glance(state: State, reduced: Reduced, *, choose: bool, narrow: bool, enough: float) -> None:
    from planner.search.automatic import glance

    glance(state, reduced, choose=choose, narrow=narrow, enough=enough)


SOLVER = Solver(
    "auto",
    "elimination, message passing where its tables grow too large, the integer program for the gap that is left",
    solve=_solve,
    glance=_glance,
)
