"""Exact evaluation of choices of a large problem: `evaluate` on flat arrays, some hundred times faster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.search.problem import FORBIDDEN, Problem

__all__ = ["Evaluator"]

Integers = NDArray[np.int64]


class Evaluator:
    """`Evaluator(problem)(choice)` equals `evaluate(problem, choice)`."""

    def __init__(self, problem: Problem) -> None:
        nodes, edges = problem.nodes, problem.edges
        self.limit = problem.limit
        self._nodes = _Table([n.costs for n in nodes])
        self._edges = _Table([e.costs for e in edges])
        self._u, self._v = _column([e.u for e in edges]), _column([e.v for e in edges])
        self._columns = _column([e.costs.shape[1] for e in edges])
        holding = [] if self.limit is None else [v for v, n in enumerate(nodes) if _holds(n)]
        pairs = [] if self.limit is None else [k for k, e in enumerate(edges) if _holds(e)]
        self._holders, self._pairs = _column(holding), _column(pairs)
        self._node_bytes = _Table([nodes[v].usage for v in holding])
        self._edge_bytes = _Table([edges[k].usage for k in pairs])
        spans = [nodes[v].interval for v in holding] + [edges[k].interval for k in pairs]
        ends = np.array([s for s in spans if s is not None], np.int64).reshape(-1, 2)
        self._times, self._instant = np.unique(ends, return_inverse=True)
        self._instant = self._instant.reshape(-1, 2)

    def __call__(self, choice: Sequence[int]) -> int | None:
        x = np.asarray(choice, np.int64)
        pair = x[self._u] * self._columns + x[self._v]
        costs = np.concatenate((self._nodes.at(x), self._edges.at(pair)))
        if (costs >= FORBIDDEN).any():
            return None
        if self.limit is not None and len(self._times):
            held = (self._node_bytes.at(x[self._holders]), self._edge_bytes.at(pair[self._pairs]))
            if self._peak(np.concatenate(held)) > self.limit:
                return None
        return _total(costs)

    def _peak(self, held: Integers) -> int:
        if _total(np.abs(held)) >= 2**62:  # beyond what int64 adds exactly
            held = held.astype(object)
        change = np.zeros(len(self._times), held.dtype)
        np.add.at(change, self._instant[:, 0], held)
        np.subtract.at(change, self._instant[:, 1], held)
        return max(0, int(np.cumsum(change).max()))


class _Table:
    """Arrays one after the other, each object once."""

    def __init__(self, arrays: Sequence[Integers | None]) -> None:
        pieces, places, first, filled = [np.zeros(0, np.int64)], {}, [], 0
        for array in arrays:
            if array is None:
                continue
            if id(array) not in places:
                places[id(array)] = filled
                pieces.append(array.ravel())
                filled += array.size
            first.append(places[id(array)])
        self._values, self._first = np.concatenate(pieces), _column(first)

    def at(self, index: Integers) -> Integers:
        return self._values[self._first + index]


def _holds(item: object) -> bool:
    usage, interval = getattr(item, "usage", None), getattr(item, "interval", None)
    return usage is not None and interval is not None and interval[0] < interval[1]


def _column(values: Sequence[int]) -> Integers:
    return np.array(values, np.int64)


def _total(values: Integers) -> int:
    """The sum in exact integers."""
    low, high = values & 0xFFFFFFFF, values >> 32
    return int(low.sum()) + (int(high.sum()) << 32)
