"""Exact moves on random induced trees under the hard memory limit (`forest.c`)."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.native.library import library, pointer

__all__ = ["Forest", "Graph"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
GUMBEL = 4096  # samples of the noise


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes, edges seen from both ends and memory terms as flat arrays; `forest.c` says what each holds.

    Costs and bytes are integers in float64.  ValueError where an index points outside.
    """

    start: Integers
    at: Integers
    neighbour: Integers
    matrix: Integers
    twin: Integers
    pool: Floats
    term_at: Integers
    begin: Integers
    end: Integers
    held: Integers
    uses: Floats
    unary: Floats
    limits: Floats

    def __post_init__(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            expected = np.float64 if field.name in ("pool", "uses", "unary", "limits") else np.int64
            if array.dtype != expected or array.ndim != 1 or not array.flags.c_contiguous:
                raise ValueError(f"{field.name}: expected one contiguous row of {np.dtype(expected).name}")
        sizes = self.sizes
        _check("start", self.start[0] == 0 and (sizes > 0).all() and self.start[-1] == len(self.unary))
        _check("at", _partition(self.at, self.nodes, len(self.neighbour)))
        _check("term_at", _partition(self.term_at, self.nodes, len(self.begin)))
        owner = np.repeat(np.arange(self.nodes), np.diff(self.at))
        holder = np.repeat(np.arange(self.nodes), np.diff(self.term_at))
        _check("neighbour", ((self.neighbour >= 0) & (self.neighbour < self.nodes) & (self.neighbour != owner)).all())
        entries = sizes[owner] * sizes[self.neighbour]
        _check("matrix", len(self.matrix) == len(owner) and _within(self.matrix, entries, len(self.pool)))
        _check("twin", len(self.twin) == len(owner) and _within(self.twin, np.ones_like(owner), len(owner)))
        _check(
            "twin", (self.twin[self.twin] == np.arange(len(owner))).all() and (owner[self.twin] == self.neighbour).all()
        )
        _check("term_at", _partition(self.term_at, self.nodes, len(self.begin)))
        _check("begin, end", len(self.begin) == len(self.end) == len(self.held))
        _check("begin, end", ((self.begin >= 0) & (self.begin <= self.end) & (self.end <= self.rows)).all())
        _check("held", _within(self.held, sizes[holder], len(self.uses)))

    @property
    def nodes(self) -> int:
        return len(self.start) - 1

    @property
    def rows(self) -> int:
        return len(self.limits)

    @property
    def sizes(self) -> Integers:
        """States of every node."""
        return np.diff(self.start)


def _check(name: str, holds: object) -> None:
    if not holds:
        raise ValueError(f"{name}: an index points outside")


def _partition(at: Integers, nodes: int, count: int) -> bool:
    return bool(len(at) == nodes + 1 and at[0] == 0 and at[-1] == count and (np.diff(at) >= 0).all())


def _within(first: Integers, lengths: Integers, count: int) -> bool:
    return bool(((first >= 0) & (first + lengths <= count)).all())


_ORDER = ("start", "at", "neighbour", "matrix", "twin", "pool", "term_at", "begin", "end", "held", "uses")


class _Structure(ctypes.Structure):
    _fields_ = [("nodes", ctypes.c_int64), ("rows", ctypes.c_int64), *((name, ctypes.c_void_p) for name in _ORDER)]


class Forest:
    """A choice `x` under search: its `cost`, and the `best` choice within the limits so far.

    Everything it does follows from `seed`.  RuntimeError where the compiled kernels are missing.
    """

    def __init__(self, graph: Graph, x: Integers, seed: int) -> None:
        native = library()
        if native is None:
            raise RuntimeError("moves on trees need the compiled kernels")
        self.graph, self._native = graph, native
        self._structure = _Structure(graph.nodes, graph.rows, *(pointer(getattr(graph, name)) for name in _ORDER))
        self._leaves = 1
        while self._leaves < max(1, graph.rows):
            self._leaves *= 2
        self._most, self._extra = np.zeros(2 * self._leaves), np.zeros(2 * self._leaves)
        self._levels = (ctypes.c_void_p * 3)(self._leaves, self._most.ctypes.data, self._extra.ctypes.data)
        random = np.random.default_rng(seed)
        self._state = random.integers(1, 2**64 - 1, 1, dtype=np.uint64)
        self._gumbel = -np.log(-np.log(np.maximum(random.random(GUMBEL), 1e-300)))
        self._price, self._score = np.zeros(len(graph.unary)), np.zeros(len(graph.unary))
        self._message = np.zeros(int(graph.sizes.max(initial=1)))
        self._integers = np.zeros(7 * graph.nodes, np.int64)
        self.stop = np.zeros(1, np.int32)
        self.x = np.zeros(graph.nodes, np.int64)
        self.best = self.x.copy()
        self._cost, self._best_cost = np.zeros(1), np.full(1, math.inf)
        native.forest_cost.restype = ctypes.c_double
        native.forest_search.restype = ctypes.c_int64
        self.reset(x)

    @property
    def cost(self) -> float:
        return float(self._cost[0])

    @property
    def best_cost(self) -> float:
        """Infinite while no choice within the limits was met."""
        return float(self._best_cost[0])

    @property
    def over(self) -> float:
        """By how much the highest row exceeds its limit; at most 0 where all fit."""
        return float(self._most[1]) if self.graph.rows else 0.0

    @property
    def price(self) -> Floats:
        """What the prices make of every state."""
        return self._price

    def reset(self, x: Integers) -> None:
        """Goes on from choice `x`."""
        x = np.asarray(x, np.int64)
        _check("x", x.shape == self.x.shape and ((x >= 0) & (x < self.graph.sizes)).all())
        self.x[:] = x
        self._cost[0] = self._native.forest_cost(self._ref, pointer(self.graph.unary), pointer(self.x))
        rows, leaves = self.graph.rows, self._leaves
        self._extra[:] = 0
        self._most[leaves:] = -math.inf
        self._most[leaves : leaves + rows] = self._extra[leaves : leaves + rows] = self.levels() - self.graph.limits
        if not rows:
            self._most[:] = 0
        k = leaves // 2
        while k >= 1:
            self._most[k : 2 * k] = self._most[2 * k : 4 * k].reshape(k, 2).max(axis=1)
            k //= 2
        if self.over <= 0 and self.cost < self.best_cost:
            self.best[:], self._best_cost[0] = self.x, self.cost

    @property
    def _ref(self) -> Any:
        return ctypes.byref(self._structure)

    def levels(self, x: Integers | None = None) -> Floats:
        """Bytes in use in every row, by `x` (None: by the present choice)."""
        x = self.x if x is None else x
        _check("x", x.dtype == np.int64 and x.shape == self.x.shape and ((x >= 0) & (x < self.graph.sizes)).all())
        level = np.zeros(self.graph.rows + 1)
        self._native.forest_levels(self._ref, pointer(x), pointer(level))
        return level[:-1]

    def set_prices(self, prices: Floats) -> None:
        """Prices (cost per byte) of the rows, which moves add to the cost."""
        _check("prices", prices.shape == self.graph.limits.shape)
        until = np.concatenate(([0.0], np.cumsum(prices)))
        self._native.forest_price(self._ref, pointer(until), pointer(self._price))

    def search(self, moves: int, largest: int, *, temperature: float = 0.0, hard: bool = True) -> int:
        """Moves on trees of at most `largest` nodes; how many changed something.

        `hard`: none may lift a row above its limit (or what is above already, any further).
        """
        if not self.graph.nodes:
            return 0
        return int(
            self._native.forest_search(
                self._ref,
                self._levels,
                pointer(self.graph.unary),
                pointer(self._price),
                ctypes.c_double(temperature),
                ctypes.c_int64(largest),
                ctypes.c_int64(moves),
                ctypes.c_int32(hard),
                *map(pointer, (self._state, self.x, self._cost, self.best, self._best_cost, self._integers)),
                *map(pointer, (self._score, self._message, self._gumbel, self.stop)),
            )
        )
