"""The portfolio for large problems, on plans: contraction, the dual and moves on trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.solver import Found, Solver

if TYPE_CHECKING:
    from planner.search.reduction.reduced import Reduced
    from planner.search.state import State

__all__ = ["SOLVER"]


def _solve(state: State, reduced: Reduced, cutoff: float) -> Found:
    from planner.search.control import Control
    from planner.search.large import solve_large
    from planner.search.prices.memory import Bounded
    from planner.search.reduction.reduced import Infeasible

    outer = state.control
    # It contracts the original problem anew: the way back from a contraction leads to the problem it began with.
    found = solve_large(state.problem, Control(outer.left, cancel=outer.cancel, say=outer.say))
    if found.status == "infeasible":
        raise Infeasible
    if found.cost is not None:
        state.take(found.choice, found.cost, found.solver)
    return Found(Bounded(None, found.bound / reduced.scale), found.solver)


SOLVER = Solver(
    "portfolio",
    "contraction, then the dual and moves on trees; auto where edges hold memory",
    solve=_solve,
    needs=("ortools",),
)
