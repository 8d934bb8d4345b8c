"""The optimisation problem every solver answers, as plain arrays.

Choose one state for every node so that the sum of node costs and edge costs is least, while at every
instant the memory of the nodes and edges alive stays within the limit:

    minimise    sum_v cost_v[x_v] + sum_(u,v) cost_uv[x_u, x_v]
    subject to  sum_{v alive at t} usage_v[x_v] + sum_{(u,v) alive at t} usage_uv[x_u, x_v] <= limit   for all t
                cost_v[x_v] < FORBIDDEN,  cost_uv[x_u, x_v] < FORBIDDEN

Costs are integers (the pricing uses picoseconds) so that equal optima compare equal; an entry of
FORBIDDEN or more excludes a state or a pair.  Several edges may join the same pair of nodes: they
add up.  Arrays are shared freely between nodes and edges and must not be written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["FORBIDDEN", "Edge", "Node", "Problem", "Solution", "Status"]

FORBIDDEN = 10**18

IntArray = NDArray[np.int64]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """`costs[i]` of choosing state i; `usage[i]` bytes held during the half-open `interval` (None: none)."""

    costs: IntArray
    usage: IntArray | None = None
    interval: tuple[int, int] | None = None
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """`costs[i, j]` of choosing state i at node `u` and j at node `v` (u != v); `usage` likewise in bytes."""

    u: int
    v: int
    costs: IntArray
    usage: IntArray | None = None
    interval: tuple[int, int] | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """`limit` is in bytes; None means unlimited."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Solution:
    """`choice[v]` is the state of node v (empty unless a choice was found); `cost` is what the independent
    evaluator says of it; `bound` is a proven lower bound on the cost of every valid choice.

    status: `optimal` (cost == bound), `feasible`, `infeasible` (proven), `unknown` (limit reached).
    For `infeasible`, `memory_bound` is a proven lower bound on the peak memory of every allowed choice.
    """

    status: Status
    choice: tuple[int, ...] = ()
    cost: int | None = None
    bound: int = 0
    solver: str = ""
    memory_bound: int | None = None


def alive_intervals(problem: Problem) -> Iterable[tuple[int, int]]:
    """The intervals of everything that holds memory."""
    items: list[Node | Edge] = [*problem.nodes, *problem.edges]
    for item in items:
        if item.usage is not None and item.interval is not None and item.interval[0] < item.interval[1]:
            yield item.interval
