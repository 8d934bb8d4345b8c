"""Every choice, one by one: the reference that the solvers are tested against."""

from __future__ import annotations

import numpy as np

from planner.search.evaluate import evaluate, peak_memory
from planner.search.problem import FORBIDDEN, Edge, Node, Problem, Solution, alive_intervals
from planner.search.rows import clique_instants, covered_rows

__all__ = ["MOST_CHOICES", "brute_force", "least_peak"]

MOST_CHOICES = 2_000_000


def brute_force(problem: Problem) -> Solution:
    """The optimum by enumeration.  ValueError above `MOST_CHOICES` choices."""
    costs, allowed, peak = _enumerate(problem)
    if not allowed.any():
        return Solution("infeasible", solver="brute")
    fits = allowed if problem.limit is None else allowed & (peak <= problem.limit)
    if not fits.any():
        return Solution("infeasible", solver="brute", memory_bound=int(peak[allowed].min()))
    best = int(np.flatnonzero(fits)[np.argmin(costs[fits])])
    choice = tuple(int(x) for x in np.unravel_index(best, _shape(problem)))
    cost = evaluate(problem, choice)
    assert cost == int(costs[best])
    return Solution("optimal", choice, cost, cost, "brute")


def least_peak(problem: Problem) -> int | None:
    """Least peak memory of any allowed choice, in bytes; None when every choice is forbidden."""
    _, allowed, peak = _enumerate(problem)
    if not allowed.any():
        return None
    best = int(np.flatnonzero(allowed)[np.argmin(peak[allowed])])
    assert peak_memory(problem, [int(x) for x in np.unravel_index(best, _shape(problem))]) == int(peak[best])
    return int(peak[best])


def _shape(problem: Problem) -> tuple[int, ...]:
    return tuple(len(n.costs) for n in problem.nodes)


def _enumerate(problem: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cost, not forbidden, peak memory) of every choice, in lexicographic order."""
    shape = _shape(problem)
    count = int(np.prod(shape, dtype=np.float64))
    if count > MOST_CHOICES:
        raise ValueError(f"brute force over {count} choices; at most {MOST_CHOICES} are enumerated")
    x = np.unravel_index(np.arange(count), shape) if shape else ()
    costs = np.zeros(count, np.int64)
    allowed = np.ones(count, bool)
    instants = clique_instants(alive_intervals(problem))
    held = np.zeros((len(instants), count), np.int64)
    indexed: list[tuple[Node | Edge, tuple[np.ndarray, ...]]] = [
        *((n, (x[v],)) for v, n in enumerate(problem.nodes)),
        *((e, (x[e.u], x[e.v])) for e in problem.edges),
    ]
    for item, index in indexed:
        values = item.costs[index]
        allowed &= values < FORBIDDEN
        costs += np.where(values < FORBIDDEN, values, 0)
        if item.usage is not None and item.interval is not None and item.interval[0] < item.interval[1]:
            a, b = covered_rows(instants, item.interval)
            held[a:b] += item.usage[index]
    return costs, allowed, held.max(axis=0, initial=0)
