"""A contracted problem as the flat arrays that the compiled kernels work on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.native.forest import Graph
from planner.search.reduction.reduced import Reduced

__all__ = ["flatten"]

Floats = NDArray[np.float64]


def flatten(reduced: Reduced, beyond: float) -> Graph:
    """The graph of a problem none of whose edges holds memory; forbidden entries cost `beyond`."""
    arrays = reduced.arrays
    pool, uses = _Pool(), _Pool()
    sides: list[list[tuple[int, int, int]]] = [[] for _ in reduced.nodes]  # (neighbour, matrix, edge)
    for e, (u, v, factor) in enumerate(reduced.edges):
        number = factor.costs
        sides[v].append((u, pool.place((number, 0), arrays[number]), e))  # [state of u][state of v]
        sides[u].append((v, pool.place((number, 1), arrays[number].T), e))
    flat = [s for side in sides for s in side]
    terms = [(a, b, uses.place((n, 0), arrays[n])) for f in reduced.nodes for (a, b), n in f.usage]
    return Graph(
        start=_starts([len(s) for s in reduced.states]),
        at=_starts([len(s) for s in sides]),
        neighbour=_column(flat, 0),
        matrix=_column(flat, 1),
        twin=_twins(_column(flat, 2)),
        pool=np.minimum(pool.joined(), beyond),
        term_at=_starts([len(f.usage) for f in reduced.nodes]),
        begin=_column(terms, 0),
        end=_column(terms, 1),
        held=_column(terms, 2),
        uses=uses.joined(),
        unary=np.minimum(np.concatenate([np.zeros(0), *(arrays[f.costs] for f in reduced.nodes)]), beyond),
        limits=np.asarray(reduced.limits, np.float64),
    )


class _Pool:
    """Arrays one after the other, each once."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._pieces: list[Floats] = [np.zeros(0)]
        self._filled = 0

    def place(self, key: tuple[int, int], array: Floats) -> int:
        if key not in self._places:
            self._places[key] = self._filled
            self._pieces.append(np.ascontiguousarray(array, np.float64).ravel())
            self._filled += array.size
        return self._places[key]

    def joined(self) -> Floats:
        return np.concatenate(self._pieces)


def _twins(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every edge number occurs twice: for each place, the other one."""
    pairs = np.argsort(edges, kind="stable").reshape(-1, 2)
    twin = np.empty(len(edges), np.int64)
    twin[pairs[:, 0]], twin[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
    return twin


def _starts(counts: list[int]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(np.array(counts, np.int64)))).astype(np.int64)


def _column(rows: list[tuple[int, int, int]], k: int) -> NDArray[np.int64]:
    return np.array([r[k] for r in rows], np.int64)
