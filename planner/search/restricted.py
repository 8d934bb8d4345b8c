"""Where exact elimination is too wide: a bound by message passing, and the best choice among promising states.

Every node keeps the states that the messages score best, together with those of the best choice known; the
problem restricted to them is eliminated exactly, so the choice never gets worse.  Fewer states are kept until
the tables fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.search.lagrangian import Lagrangian
from planner.search.memory import Bounded, branch_and_bound
from planner.search.messages import Messages
from planner.search.reduced import Factor, Infeasible, Reduced
from planner.search.tables import TableStore, TooLarge

__all__ = ["restrict", "solve_restricted"]

SWEEPS = 40
WIDTHS = (24, 16, 10, 6, 4, 3, 2)
BRANCHES = 200  # evaluations of the dual where memory binds
ENTRIES = 1 << 23  # of one table: restricted problems are many, so each must stay cheap


def restrict(problem: Reduced, kept: Sequence[NDArray[np.int64]]) -> Reduced:
    """The problem with only the states `kept[v]` of each node."""
    arrays = problem.arrays
    numbers = [arrays.add(k) for k in kept]

    def node(factor: Factor, v: int) -> Factor:
        usage = tuple((span, arrays.take(a, 0, numbers[v])) for span, a in factor.usage)
        return Factor(arrays.take(factor.costs, 0, numbers[v]), usage)

    def edge(factor: Factor, u: int, v: int) -> Factor:
        def both(a: int) -> int:
            return arrays.take(arrays.take(a, 0, numbers[u]), 1, numbers[v])

        return Factor(both(factor.costs), tuple((span, both(a)) for span, a in factor.usage))

    return replace(
        problem,
        states=tuple(s[k] for s, k in zip(problem.states, kept, strict=True)),
        nodes=tuple(node(f, v) for v, f in enumerate(problem.nodes)),
        edges=tuple((u, v, edge(f, u, v)) for u, v, f in problem.edges),
    )


def solve_restricted(problem: Reduced, start: Sequence[int] | None, *, deadline: float | None) -> Bounded:
    """A choice within the limits (None where none was found) and a proven bound."""
    best = None if start is None else tuple(start)
    cost = math.inf if best is None else problem.cost(best)
    big = 4 * (cost if math.isfinite(cost) else _most(problem)) + 1
    messages = Messages(problem, big)
    # Rounding of the sums of capped entries: far below one part in 1e9, which the bound gives away.
    bound = messages.run(sweeps=SWEEPS, deadline=deadline)
    bound -= 1e-9 * abs(bound)
    ranked = [np.argsort(s, kind="stable") for s in messages.scores]
    for width in WIDTHS:
        kept = []
        for v, order in enumerate(ranked):
            states = set(order[:width].tolist()) | ({best[v]} if best is not None else set())
            kept.append(np.array(sorted(states), dtype=np.int64))
        smaller = restrict(problem, kept)
        try:
            chosen = _best(smaller, deadline)
        except (TooLarge, Infeasible):
            continue
        if chosen is None:
            continue
        found = tuple(int(kept[v][x]) for v, x in enumerate(chosen))
        if problem.cost(found) < cost:
            best, cost = found, problem.cost(found)
        break
    return Bounded(best, min(bound, cost))


def _best(problem: Reduced, deadline: float | None) -> tuple[int, ...] | None:
    if len(problem.limits):
        return branch_and_bound(problem, deadline=deadline, work=BRANCHES).choice
    store = TableStore(size_cap=ENTRIES, work_cap=ENTRIES << 6)
    return Lagrangian(problem, store=store).evaluate({}, {})[1].choice


def _most(problem: Reduced) -> float:
    """More than any allowed choice costs."""
    arrays = problem.arrays
    factors = [*problem.nodes, *(f for _, _, f in problem.edges)]
    return abs(problem.offset) + math.fsum(max(0.0, arrays.high(f.costs)) for f in factors)
