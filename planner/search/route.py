"""Which solver a saved problem goes to: the exact ones, or the portfolio for problems beyond them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Literal, Protocol

from planner.search.control import Control
from planner.search.problem import Problem, Solution
from planner.search.solve import Search

__all__ = ["Chosen", "is_large", "search"]

Chosen = Literal["auto", "dp", "ilp", "large"]
SMALL_ENTRIES = 20_000  # entries of all edge matrices up to which the exact solvers take a second or so


def is_large(problem: Problem) -> bool:
    """Whether the portfolio does better than the exact solvers alone."""
    return sum(e.costs.size for e in problem.edges) > SMALL_ENTRIES


class _Portfolio(Protocol):
    def __call__(self, problem: Problem, control: Control, *, seed: int) -> Solution: ...


def _portfolio() -> _Portfolio | None:
    """`solve_large`; None where the package comes without it."""
    if importlib.util.find_spec("planner.search.large") is None:
        return None
    found: _Portfolio | None = getattr(importlib.import_module("planner.search.large"), "solve_large", None)
    return found


def search(problem: Problem, control: Control, *, solver: Chosen = "auto", seed: int = 0) -> Solution:
    """Solves under `control`, where everything found on the way is left as well."""
    if solver == "large" or (solver == "auto" and is_large(problem)):
        portfolio = _portfolio()
        if portfolio is not None:
            return portfolio(problem, control, seed=seed)
        solver = "auto"
    exact = Search(problem, control, solver=solver, start=control.best)
    found = exact.run()
    if found.status != "infeasible":
        control.prove(found.bound, found.solver)
    if exact.reduced is not None:
        prices = exact.prices if exact.rounds is None else exact.rounds.prices
        scale = exact.reduced.scale
        control.prices = {exact.reduced.instants[r]: p * scale for r, p in prices.items() if p > 0}
    return found
