"""Exact moves on random induced trees (`forest.c`)."""

from __future__ import annotations

import ctypes
import math

import numpy as np
from numpy.typing import NDArray

from planner.search.large.core import Core, structure
from planner.search.native.library import library, pointer

__all__ = ["Forest"]

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
GUMBEL = 4096


class Forest:
    """A choice `x` under search: its `cost` (without the problem's offset), the `best` one within the limits."""

    def __init__(self, core: Core, x: Integers, seed: int) -> None:
        self.core, self.graph = core, structure(core)
        self.native = library()
        self.rng = np.array([(seed * 2 + 1) * 0x9E3779B97F4A7C15 % 2**64 or 1], np.uint64)
        leaves = 1
        while leaves < max(1, core.rows):
            leaves *= 2
        self.leaves = leaves
        self.most, self.extra = np.zeros(2 * leaves), np.zeros(2 * leaves)
        self.price = np.zeros(len(core.unary))
        self.integers = np.zeros(7 * core.nodes, np.int64)
        self.score, self.message = np.zeros(len(core.unary)), np.zeros(core.widest)
        self.gumbel = -np.log(-np.log(np.random.default_rng(seed).random(GUMBEL)))
        self.stop = np.zeros(1, np.int32)
        self.x = np.ascontiguousarray(x, np.int64).copy()
        self.best, self.best_cost = self.x.copy(), np.array([math.inf])
        self.cost = np.zeros(1)
        self.native.forest_cost.restype = ctypes.c_double
        self.native.forest_search.restype = ctypes.c_int64
        self.reset(self.x)

    def reset(self, x: Integers) -> None:
        """Goes on from choice `x`."""
        self.x[:] = x
        self.cost[0] = self.native.forest_cost(ctypes.byref(self.graph), *map(pointer, (self.core.unary, self.x)))
        over = self.levels() - self.core.limits
        self.extra[:] = 0
        self.most[self.leaves :] = -np.inf
        self.most[self.leaves : self.leaves + self.core.rows] = over
        self.extra[self.leaves : self.leaves + self.core.rows] = over
        if not self.core.rows:
            self.most[:] = 0
        k = self.leaves // 2
        while k >= 1:
            self.most[k : 2 * k] = self.most[2 * k : 4 * k].reshape(k, 2).max(axis=1)
            k //= 2
        if self.most[1] <= 0 and self.cost[0] < self.best_cost[0]:
            self.best[:], self.best_cost[0] = self.x, self.cost[0]

    def levels(self) -> Floats:
        level = np.zeros(self.core.rows + 1)
        self.native.forest_levels(ctypes.byref(self.graph), pointer(self.x), pointer(level))
        return level[:-1]

    def set_prices(self, prices: Floats) -> None:
        until = np.concatenate(([0.0], np.cumsum(prices)))
        self.native.forest_price(ctypes.byref(self.graph), pointer(until), pointer(self.price))

    def search(self, moves: int, largest: int, *, temperature: float = 0.0, hard: bool = True) -> int:
        levels = (ctypes.c_void_p * 3)(self.leaves, self.most.ctypes.data, self.extra.ctypes.data)
        c = self.core
        return int(
            self.native.forest_search(
                ctypes.byref(self.graph),
                levels,
                pointer(c.unary),
                pointer(self.price),
                ctypes.c_double(temperature),
                ctypes.c_int64(largest),
                ctypes.c_int64(moves),
                ctypes.c_int32(hard),
                *map(pointer, (self.rng, self.x, self.cost, self.best, self.best_cost, self.integers)),
                *map(pointer, (self.score, self.message, self.gumbel, self.stop)),
            )
        )
