"""Searches for what bounds the step of every plan of an option, whatever hides behind what."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import Final

from planner.clock import Relaxation, Weights, held_up, relaxation
from planner.planning.options import Option
from planner.planning.recall import plain_choice
from planner.pricing import PricedProblem
from planner.search.control import Control
from planner.search.elimination.tables import TooLarge
from planner.search.prices.repriced import Repriced
from planner.search.reduction.reduced import Infeasible
from planner.search.solve import Search
from planner.search.solvers import SolverName

__all__ = ["LARGE", "cheapest", "closed_gap", "least_step", "least_step_that_fits", "search_relaxed"]

LARGE: Final = 1000  # operators of a graph where looking closer takes long
_CLOSED: Final = 1e-4  # relative gap of the step at which a mesh is done
_CLOSED_LARGE: Final = 2e-3  # of a large graph
_ROUNDS: Final = 6  # of prices on memory, under a bound


def closed_gap(priced: PricedProblem) -> float:
    """Relative gap of the step at which a mesh is done."""
    return _CLOSED if len(priced.op_nodes) < LARGE else _CLOSED_LARGE


def search_relaxed(
    option: Option, relaxed: Relaxation, control: Control, solver: SolverName = "auto", *, prune: bool = True
) -> Search:
    """The search of an objective of other weights.  Where memory rules something out, or that is not known, its rows
    are left out: what is best without them bounds all the more.  `prune` as of `planner.search.reduction.presolve`."""
    reduced = None if option.search is None else option.search.reduced
    free = option.search is None or (reduced is not None and len(reduced.limits) > 0)
    problem = replace(relaxed.problem, limit=None) if free else relaxed.problem
    return Search(problem, control, solver=solver, like=reduced, prune=prune)


def least_step(option: Option, control: Control, enough: float, *, narrow: bool) -> tuple[int, bool]:
    """Units that the step of every plan of the option takes at least, not looked for beyond `enough`, and whether
    elimination was narrow enough for it, which is not tried where `narrow` is false."""
    assert option.priced is not None
    relaxed = relaxation(option.priced, Weights(1.0, held_up(option.priced, cheapest(option))))
    # Messages on a problem as it stands take less time than to make it smaller, and are often enough.
    bound = 0
    for prune in (True,) if narrow else (False, True):
        search = search_relaxed(option, relaxed, control, prune=prune)
        search.glance(narrow=narrow, enough=enough - relaxed.constant)
        bound = max(bound, relaxed.bound(search.bound))
        if bound >= enough or control.stopped:
            break
    return bound, search.rounds is None


def least_step_that_fits(option: Option, control: Control, enough: float) -> int:
    """Units that the step of every plan of the option takes at least that fits in memory, by prices on its rows; not
    looked for beyond `enough`."""
    priced = option.priced
    assert priced is not None
    limit = priced.problem.limit
    assert limit is not None, "without a limit everything fits"
    relaxed = relaxation(priced, Weights(1.0, held_up(priced, cheapest(option))))
    starts = [f.choice for f in (option.over, option.fitted, option.smallest, *option.known) if f is not None]
    if not starts:  # message passing takes some choice to begin with
        plain = plain_choice(replace(priced, problem=replace(priced.problem, limit=None)), control)
        starts = [] if plain is None else [plain]
    dual = Repriced(relaxed.problem, lambda: control.stopped, starts=starts)
    with suppress(TooLarge, Infeasible):  # what was met before counts
        dual.maximise(limit, rounds=_ROUNDS, enough=enough - relaxed.constant)
    bound, _ = dual.best(limit)
    return relaxed.bound(math.ceil(bound)) if math.isfinite(bound) else 0


def cheapest(option: Option) -> tuple[int, ...]:
    """The cheapest state of every node by itself, where no choice is known."""
    assert option.priced is not None
    return tuple(int(node.costs.argmin()) for node in option.priced.problem.nodes)
