"""The default solver: elimination, message passing where its tables grow too large, and the integer program."""

from __future__ import annotations

import math
import time

import numpy as np

from planner.search.elimination.complete import eliminated
from planner.search.elimination.tables import TableStore, TooLarge
from planner.search.messages.restricted import Rounds
from planner.search.prices.lagrangian import Lagrangian
from planner.search.prices.local import LocalSearch
from planner.search.prices.memory import Bounded
from planner.search.reduction.reduced import Infeasible, Reduced
from planner.search.solver import Found
from planner.search.state import State

__all__ = ["glance", "solve"]

ENTRIES = 1 << 26  # of all tables together that elimination may fill before message passing: half a second
GLANCE = 5  # evaluations of the dual at the first glance
REPAIRS = 2  # sweeps of local search for a first choice
ILP_PAIRS = 200_000  # with more pairs of states an integer program does not improve on what is known


def glance(state: State, reduced: Reduced, *, choose: bool, narrow: bool, enough: float) -> None:
    """As of `Search.glance`.  Infeasible where nothing is left."""
    dual = Lagrangian(reduced, store=TableStore(total_cap=ENTRIES, stop=lambda: state.control.stopped))
    try:
        if not narrow and reduced.nodes:
            raise TooLarge("a problem like this was too wide for elimination")
        if not len(reduced.limits):
            value, cut = dual.evaluate({}, {})
            state.offer(cut.choice, cut.cost, "elimination")
            state.prove(value, "elimination")
            return
        found = dual.maximise(
            {}, {}, rounds=GLANCE, enough=math.inf, spread=_spread(reduced), stop=lambda: state.control.stopped
        )
    except TooLarge as reason:
        state.control.say(f"{reason}: message passing and elimination among promising states instead")
        state.rounds = Rounds(reduced, state.goal(enough / reduced.scale + 1, "messages"), contracting=True)
        state.rounds.glance(choose=choose and state.cost is None)
        state.prove(state.rounds.bound, "messages")
        return
    state.prices = found.prices
    for cut in found.cuts:
        if not (cut.usage > reduced.limits).any():
            state.offer(cut.choice, cut.cost, "elimination")
    state.prove(found.bound, "elimination")
    if choose and state.cost is None:
        closest = min(found.cuts, key=lambda cut: float(np.maximum(cut.usage - reduced.limits, 0).sum()))
        repaired = LocalSearch(reduced).improve(closest.choice, {}, sweeps=REPAIRS)
        if repaired is not None:
            state.offer(repaired, -math.inf, "elimination")


def solve(state: State, reduced: Reduced, cutoff: float) -> Found:
    """Elimination; message passing where its tables grow too large; the ILP to close the gap that is left."""
    if state.rounds is None:
        try:
            glance(state, reduced, choose=False, narrow=True, enough=math.inf)
        except Infeasible:
            state.impossible()
    if state.closed:
        return Found(Bounded(None, state.bound / reduced.scale), state.used)
    if state.rounds is not None:
        state.rounds.goal = state.goal(cutoff, "messages+elimination")
        return Found(state.rounds.run(), "messages+elimination")
    pairs = sum(reduced.arrays[f.costs].size for _, _, f in reduced.edges)
    small = pairs <= ILP_PAIRS
    left = state.control.left
    half = None if left is None or not small else time.monotonic() + 0.5 * left
    first = eliminated(state, reduced, cutoff, None if half is None else lambda: time.monotonic() > half)
    cost = math.inf if first.bounded.choice is None else reduced.cost(first.bounded.choice)
    goal = state.goal(cutoff, "ilp")
    if goal.closed(first.bounded.bound, cost) or math.ceil(first.bounded.bound) >= cost or state.control.stopped:
        return first
    if first.bounded.choice is not None and not small:
        return first
    state.control.say(f"gap left at {cost - first.bounded.bound:.0f}: integer program from there")
    from planner.search.program.ilp import (
        solve_ilp,  # OR-Tools takes half a second to load, and most searches need none of it
    )

    second = solve_ilp(reduced, time_limit=state.control.left, hint=first.bounded.choice)
    other = math.inf if second.choice is None else reduced.cost(second.choice)
    choice = second.choice if other < cost else first.bounded.choice
    return Found(Bounded(choice, max(first.bounded.bound, second.bound)), f"{first.solver}+ilp")


def _spread(reduced: Reduced) -> float:
    """An upper bound on what any allowed choice costs."""
    arrays = reduced.arrays
    factors = (*reduced.nodes, *(f for _, _, f in reduced.edges))
    return reduced.offset + sum(max(0.0, arrays.high(f.costs)) for f in factors)
