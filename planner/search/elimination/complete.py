"""Elimination to the end, under prices on memory where memory binds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.search.elimination.tables import TableStore
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.memory import CLOSE_WORK, Bounded, branch_and_bound
from planner.search.reduction.reduced import Reduced
from planner.search.solver import Found
from planner.search.state import State

__all__ = ["eliminated"]

WORK = 10**9  # table entries that branch and bound may compute: some 20 s


def eliminated(state: State, reduced: Reduced, cutoff: float, stop: Callable[[], bool] | None = None) -> Found:
    """Elimination alone where no memory row is left; else its Lagrangian with branch and bound."""
    if not len(reduced.limits):
        store = TableStore(stop=lambda: state.control.stopped)
        value, cut = Lagrangian(reduced, store=store).evaluate({}, {})
        return Found(Bounded(cut.choice, value), "elimination")
    state.control.say(f"memory binds at up to {len(reduced.limits)} instants: Lagrangian and branch and bound")
    goal = state.goal(cutoff, "elimination+lagrangian")
    if stop is not None:
        goal = replace(goal, stop=lambda: state.control.stopped or stop())
    found = branch_and_bound(reduced, goal, work=WORK, close=CLOSE_WORK, prices=state.prices)
    return Found(found, "elimination+lagrangian")
