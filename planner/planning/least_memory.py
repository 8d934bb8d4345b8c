"""Hubs in the states that hold the least memory.

Nothing keeps a search from a hub that holds a second layout which nobody reads, where that layout is a slice of the
first: it costs nothing, and memory counts only against the limit.  The program makes no such copy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from planner.pricing import PricedProblem
from planner.pricing.hubs import SetHub
from planner.search.problem import FORBIDDEN, Edge, IntArray, Problem

__all__ = ["beside", "edges_of_hubs", "smallest_hubs"]


def edges_of_hubs(priced: PricedProblem) -> dict[int, list[Edge]]:
    """The edges at each hub's node."""
    found: dict[int, list[Edge]] = defaultdict(list)
    hubs = {node for node, _ in priced.hubs.values()}
    for e in priced.problem.edges:
        for node in hubs.intersection((e.u, e.v)):
            found[node].append(e)
    return found


def beside(
    problem: Problem, edges: Sequence[Edge], node: int, chosen: Mapping[int, int] | Sequence[int]
) -> tuple[IntArray, IntArray]:
    """What each state of a node costs, and the bytes that it and its `edges` hold, with its neighbours as `chosen`."""
    own = problem.nodes[node]
    costs = own.costs
    held = np.zeros_like(costs) if own.usage is None else own.usage
    for e in edges:
        at = (slice(None), chosen[e.v]) if e.u == node else (chosen[e.u], slice(None))
        costs = np.minimum(costs + e.costs[at], FORBIDDEN)
        held = held if e.usage is None else held + e.usage[at]
    return costs, held


def smallest_hubs(priced: PricedProblem, choice: Sequence[int]) -> tuple[int, ...]:
    """The choice with every hub that keeps a set in the state of least cost, and then of least memory, beside the
    operators and parameters as chosen: it costs no more, and holds no more at any time."""
    edges = edges_of_hubs(priced)
    states = list(choice)
    for node, hub in priced.hubs.values():
        if isinstance(hub, SetHub):
            costs, held = beside(priced.problem, edges[node], node, choice)
            best = int(np.lexsort((held, costs))[0])
            if (costs[best], held[best]) < (costs[choice[node]], held[choice[node]]) and held[best] <= held[
                choice[node]
            ]:
                states[node] = best
    return tuple(states)
