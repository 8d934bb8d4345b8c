"""The presolved problem: at most one edge per pair of nodes, interned tables, a limit per memory row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.search.reduction.arrays import Interner

__all__ = ["Factor", "Infeasible", "Reduced", "Usage"]

Usage = tuple[tuple[int, int], int]  # half-open range of rows, number of the array of bytes


class Infeasible(Exception):
    """No choice is allowed, by the forbidden entries or (where they were considered) the memory limits."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A node's vector or an edge's matrix: `costs` and the arrays of `usage` are numbers of interned float64
    arrays of one shape; forbidden entries cost infinity."""

    costs: int
    usage: tuple[Usage, ...] = ()


@dataclass(frozen=True)
class Reduced:
    """`nodes[k]` is what is left of original node `origin[k]`, its states the original `states[k]`; `edges`
    are (u, v, factor) with u < v counting within `nodes`; `limits[r]` bytes are left for row r.

    The cost of a choice is at least `scale * (offset + sum of factors)`, and equal when `scale` is 1: a larger
    scale rounds costs down so that sums stay exact in float64.
    """

    arrays: Interner
    origin: tuple[int, ...]
    states: tuple[NDArray[np.int64], ...]
    nodes: tuple[Factor, ...]
    edges: tuple[tuple[int, int, Factor], ...]
    limits: NDArray[np.float64]
    offset: int
    scale: int
    fixed: tuple[int, ...]  # state of every original node; of those left, any
    instants: tuple[int, ...] = ()  # of each row
    memory_scale: int = 1  # bytes in one unit of usage and limits, both rounded down: a choice that fits may not

    def size(self, node: int) -> int:
        return len(self.states[node])

    def restore(self, choice: Sequence[int]) -> tuple[int, ...]:
        """The choice for the original problem."""
        full = list(self.fixed)
        for origin, states, x in zip(self.origin, self.states, choice, strict=True):
            full[origin] = int(states[x])
        return tuple(full)

    def cost(self, choice: Sequence[int]) -> float:
        """Offset plus the sum of factors (infinite when forbidden)."""
        total = float(self.offset)
        for k, factor in enumerate(self.nodes):
            total += float(self.arrays[factor.costs][choice[k]])
        for u, v, factor in self.edges:
            total += float(self.arrays[factor.costs][choice[u], choice[v]])
        return total

    def usage(self, choice: Sequence[int]) -> NDArray[np.float64]:
        """Bytes in use at every row."""
        change = np.zeros(len(self.limits) + 1)
        for k, factor in enumerate(self.nodes):
            for (a, b), number in factor.usage:
                held = self.arrays[number][choice[k]]
                change[a] += held
                change[b] -= held
        for u, v, factor in self.edges:
            for (a, b), number in factor.usage:
                held = self.arrays[number][choice[u], choice[v]]
                change[a] += held
                change[b] -= held
        return np.cumsum(change)[:-1]
