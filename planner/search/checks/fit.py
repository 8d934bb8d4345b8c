"""What the checker may leave out because it cannot be part of any valid choice.

A state goes when all its pairs with some neighbour are forbidden, or when memory exceeds the limit even though
everything else alive takes its least.  What goes lets more go, until nothing does.  Plain bookkeeping, no multipliers:
it only makes bounds tighter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["Fitting", "Nothing", "fitting", "without"]

Mask = NDArray[np.bool_]
ROUNDS = 40  # of memory; what might still go after so many stays, which is never wrong
EXACT = 2**62


class Nothing(Exception):
    """No choice is valid."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitting:
    """States of every node, and the pairs of those edges of which some do not fit."""

    nodes: list[Mask]
    edges: dict[int, Mask]


def fitting(problem: Problem, allowed: Mapping[int, Mask]) -> Fitting:
    """What may be part of a valid choice of the states `allowed` (nodes left out: all).  Raises `Nothing`."""
    return _Closure(problem, allowed).run()


def without(problem: Problem, fits: Fitting) -> Problem:
    """The problem with everything else forbidden."""

    def masked(item: Node | Edge, mask: Mask) -> NDArray[np.int64]:
        return item.costs if mask.all() else np.where(mask, item.costs, FORBIDDEN)

    nodes = [replace(n, costs=masked(n, mask)) for n, mask in zip(problem.nodes, fits.nodes, strict=True)]
    edges = [replace(e, costs=masked(e, fits.edges[k])) if k in fits.edges else e for k, e in enumerate(problem.edges)]
    return replace(problem, nodes=nodes, edges=edges)


class _Closure:
    def __init__(self, problem: Problem, allowed: Mapping[int, Mask]) -> None:
        self.problem = problem
        finite: dict[int, Mask] = {}

        def allows(item: Node | Edge) -> Mask:
            if id(item.costs) not in finite:
                finite[id(item.costs)] = item.costs < FORBIDDEN
            return finite[id(item.costs)]

        self.nodes = [allows(n) & allowed[v] if v in allowed else allows(n) for v, n in enumerate(problem.nodes)]
        self.edges: dict[int, Mask] = {}  # edges with a forbidden pair
        self.around: list[list[int]] = [[] for _ in problem.nodes]
        complete: dict[int, bool] = {}
        for k, e in enumerate(problem.edges):
            if id(e.costs) not in complete:
                complete[id(e.costs)] = bool(allows(e).all())
            if not complete[id(e.costs)]:
                self._constrain(k, allows(e))
        self.dirty = set(self.edges)

    def _constrain(self, k: int, pairs: Mask) -> None:
        if k not in self.edges:
            self.around[self.problem.edges[k].u].append(k)
            self.around[self.problem.edges[k].v].append(k)
        self.edges[k] = pairs

    def run(self) -> Fitting:
        memory = _Memory(self.problem) if self.problem.limit is not None else None
        for _ in range(ROUNDS):
            self._agree()
            if not all(mask.any() for mask in self.nodes):
                raise Nothing
            if memory is None or not memory.shrink(self):
                break
        return Fitting(self.nodes, self.edges)

    def _agree(self) -> None:
        """Every state keeps a partner across every edge."""
        while self.dirty:
            k = self.dirty.pop()
            e = self.problem.edges[k]
            pairs: Mask = self.edges[k] & self.nodes[e.u][:, None] & self.nodes[e.v][None, :]
            self.keep(e.u, np.asarray(pairs.any(axis=1)), but=k)
            self.keep(e.v, np.asarray(pairs.any(axis=0)), but=k)

    def keep(self, v: int, mask: Mask, but: int | None = None) -> None:
        states = self.nodes[v] & mask
        if states.sum() < self.nodes[v].sum():
            self.nodes[v] = states
            self.dirty.update(k for k in self.around[v] if k != but)

    def exclude(self, k: int, pairs: Mask) -> None:
        """Forbids pairs of an edge that do not fit."""
        before = self.edges.get(k, np.ones(pairs.shape, bool))
        self._constrain(k, before & pairs)
        self.dirty.add(k)


class _Memory:
    """Bytes at every instant at which something begins to be held, at which alone memory grows."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        items: list[tuple[int | None, int, Node | Edge]] = [
            *((None, v, n) for v, n in enumerate(problem.nodes)),
            *((k, -1, e) for k, e in enumerate(problem.edges)),
        ]
        held = [x for x in items if x[2].usage is not None and x[2].interval and x[2].interval[0] < x[2].interval[1]]
        starts = sorted({item.interval[0] for _, _, item in held if item.interval})
        self.held: list[tuple[int | None, int, NDArray[np.int64], int, int]] = []
        largest: dict[int, int] = {}
        for k, v, item in held:
            assert item.usage is not None
            assert item.interval is not None
            first, last = bisect_left(starts, item.interval[0]), bisect_left(starts, item.interval[1])
            largest[len(self.held)] = max(abs(int(item.usage.max(initial=0))), abs(int(item.usage.min(initial=0))))
            self.held.append((k, v, item.usage, first, last))
        self.count = len(starts)
        # sums of int64 may not fit in int64
        self.kind = np.int64 if sum(largest.values()) + abs(problem.limit or 0) < EXACT else object

    def shrink(self, closure: _Closure) -> bool:
        """Takes out what cannot fit beside the least of everything else; whether there was anything."""
        least: list[int] = []
        change = np.zeros(self.count + 1, dtype=self.kind)
        known: dict[int, tuple[NDArray[np.int64], int]] = {}
        for k, v, usage, first, last in self.held:
            whole = closure.nodes[v].all() if k is None else self._whole(closure, k)
            if whole and id(usage) in known:
                low = known[id(usage)][1]
            else:
                low = int(usage.min() if whole else usage[self._allowed(closure, k, v)].min(initial=2**63 - 1))
                if whole:
                    known[id(usage)] = (usage, low)
            least.append(low)
            change[first] += low
            change[last] -= low
        room = (self.problem.limit or 0) - np.cumsum(change)[:-1]
        if self.count and room.min() < 0:
            raise Nothing
        found = False
        for (k, v, usage, first, last), low in zip(self.held, least, strict=True):
            spare = int(room[first:last].min()) + low
            if int(usage.max()) <= spare:
                continue
            fits = usage <= spare
            if (self._allowed(closure, k, v) & ~fits).any():
                found = True
                if k is None:
                    closure.keep(v, fits)
                else:
                    closure.exclude(k, fits)
        return found

    def _whole(self, closure: _Closure, k: int) -> bool:
        e = self.problem.edges[k]
        return k not in closure.edges and bool(closure.nodes[e.u].all() and closure.nodes[e.v].all())

    def _allowed(self, closure: _Closure, k: int | None, v: int) -> Mask:
        if k is None:
            return closure.nodes[v]
        e = self.problem.edges[k]
        pairs = closure.nodes[e.u][:, None] & closure.nodes[e.v][None, :]
        return pairs & closure.edges[k] if k in closure.edges else pairs
