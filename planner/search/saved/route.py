"""Which solver a saved problem goes to: the exact ones, or the portfolio for problems beyond them."""

from __future__ import annotations

from planner.search.control import Control
from planner.search.problem import Problem, Solution
from planner.search.saved.whole import WHOLE
from planner.search.solve import Search

__all__ = ["is_large", "search"]

SMALL_ENTRIES = 20_000  # entries of all edge matrices up to which the exact solvers take a second or so


def is_large(problem: Problem) -> bool:
    """Whether the portfolio does better than the exact solvers alone."""
    return sum(e.costs.size for e in problem.edges) > SMALL_ENTRIES


def search(problem: Problem, control: Control, *, solver: str = "auto", seed: int = 0) -> Solution:
    """Solves under `control`, where everything found on the way is left as well."""
    found = WHOLE.get("large" if solver == "auto" and is_large(problem) else solver)
    if found is not None and found.whole is not None and not found.lacking:
        return found.whole(problem, control, seed=seed)
    exact = Search(problem, control, solver="auto" if found is not None else solver, start=control.best)
    answer = exact.run()
    if answer.status != "infeasible":
        control.prove(answer.bound, answer.solver)
    if exact.reduced is not None:
        prices = exact.prices if exact.rounds is None else exact.rounds.prices
        scale = exact.reduced.scale
        control.prices = {exact.reduced.instants[r]: p * scale for r, p in prices.items() if p > 0}
    return answer
