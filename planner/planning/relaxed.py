"""Searches for what bounds the step of every plan of an option, whatever hides behind what."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from planner.clock import Relaxation, Weights, held_up, relaxation
from planner.planning.options import Option
from planner.search.control import Control
from planner.search.solve import Search

__all__ = ["cheapest", "least_step", "search_relaxed"]


def search_relaxed(
    option: Option, relaxed: Relaxation, control: Control, solver: Literal["auto", "dp", "ilp"] = "auto"
) -> Search:
    """The search of an objective of other weights.  Where memory rules something out, its rows are left out: what is
    best without them bounds all the more."""
    assert option.search is not None
    binds = option.search.reduced is not None and len(option.search.reduced.limits) > 0
    problem = replace(relaxed.problem, limit=None) if binds else relaxed.problem
    return Search(problem, control, solver=solver, like=option.search.reduced)


def least_step(option: Option, control: Control, enough: float) -> int:
    """Units that the step of every plan of the option takes at least; not looked for beyond `enough`."""
    assert option.priced is not None
    assert option.search is not None
    relaxed = relaxation(option.priced, Weights(1.0, held_up(option.priced, cheapest(option))))
    search = search_relaxed(option, relaxed, control)
    search.glance(narrow=option.search.rounds is None, enough=enough - relaxed.constant)
    return relaxed.bound(search.bound)


def cheapest(option: Option) -> tuple[int, ...]:
    """The cheapest state of every node by itself, where no choice is known."""
    assert option.priced is not None
    return tuple(int(node.costs.argmin()) for node in option.priced.problem.nodes)
