"""Sequential tree-reweighted message passing (TRW-S): bounds where exact elimination is too wide.

Messages reparametrise the problem; with positions as the order of the sweeps the bound never falls and converges
to that of the tree relaxation (V. Kolmogorov, "Convergent Tree-Reweighted Message Passing for Energy Minimization",
IEEE PAMI 28(10), 2006, section 4), which on planning problems is often the optimum itself.  An edge sees its nodes
through classes: states whose rows are equal share one message.  Forbidden entries cost `big`, which can only lower
the bound.  Memory rows enter through prices: the bound is then that of the Lagrangian.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from planner.native.sweeps import EdgeLayout, certify, sweep
from planner.native.tables import row_classes
from planner.search.reduction.arrays import Array
from planner.search.reduction.reduced import Factor, Reduced

__all__ = ["Certified", "Messages"]

Integers = NDArray[np.int64]
STILL = 2e-6  # relative growth of the bound over `ROUND` sweeps below which it stands still
ROUND = 10


@dataclass(frozen=True, slots=True, eq=False)
class Certified:
    """`bound` holds exactly; a choice through state i (of all nodes' states, node after node) costs at least
    `bound + above[i]`.  The integer messages `to_u` and `to_v`, laid out over classes, show it."""

    bound: int
    above: Integers
    to_u: Integers
    to_v: Integers


@dataclass(frozen=True, slots=True, eq=False)
class _Small:
    """An edge over classes: class of each row and column, and the layers (costs, then usage) of the classes."""

    rows: Integers
    columns: Integers
    layers: tuple[Array, ...]


class Messages:
    """`scores` holds, for every state of every node, what the best choice through it costs as far as the messages
    know, up to a constant of the node; the states of node v start at `layout.start[v]`."""

    def __init__(self, problem: Reduced, big: float) -> None:
        self.problem, self.big = problem, big
        self._smalls = [self._compressed(factor) for _, _, factor in problem.edges]
        self.layout = self._laid_out()
        self.to_v = np.zeros(int(self.layout.to_v_at[-1]))
        self.to_u = np.zeros(int(self.layout.to_u_at[-1]))
        self.scores = np.zeros(int(self.layout.start[-1]))
        self.bound = -math.inf
        self.sweeps = 0
        self.set_prices({})

    def _compressed(self, factor: Factor) -> _Small:
        arrays = self.problem.arrays
        numbers = (factor.costs, *(x for _, x in factor.usage))

        def compute() -> _Small:
            layers = np.stack([arrays[x] for x in numbers], axis=-1)
            rows, first_rows = row_classes(layers)
            columns, first_columns = row_classes(layers.transpose(1, 0, 2))
            picked = np.ix_(first_rows, first_columns)
            return _Small(rows, columns, tuple(arrays[x][picked] for x in numbers))

        return arrays.once(("compressed", numbers), compute)

    def _laid_out(self) -> EdgeLayout:
        problem = self.problem
        place: dict[int, tuple[int, int]] = {}
        maps: list[Integers] = []
        filled = 0
        for small in self._smalls:
            if id(small) not in place:
                place[id(small)] = filled, filled + len(small.rows)
                maps += [small.rows, small.columns]
                filled += len(small.rows) + len(small.columns)
        shapes = np.array([s.layers[0].shape for s in self._smalls], dtype=np.int64).reshape(-1, 2)
        rows, columns = np.ascontiguousarray(shapes[:, 0]), np.ascontiguousarray(shapes[:, 1])
        later_at, later = _lists([u for u, _, _ in problem.edges], len(problem.nodes))
        earlier_at, earlier = _lists([v for _, v, _ in problem.edges], len(problem.nodes))
        return EdgeLayout(
            start=_starts([len(s) for s in problem.states]),
            map_u=np.array([place[id(s)][0] for s in self._smalls], dtype=np.int64),
            map_v=np.array([place[id(s)][1] for s in self._smalls], dtype=np.int64),
            rows=rows,
            columns=columns,
            matrix=np.zeros(len(shapes), np.int64),
            maps=np.concatenate([*maps, np.zeros(0)]).astype(np.int32),
            to_v_at=_starts(columns),
            to_u_at=_starts(rows),
            later_at=later_at,
            later=later,
            earlier_at=earlier_at,
            earlier=earlier,
        )

    def set_prices(self, prices: Mapping[int, float]) -> None:
        """Prices (cost per byte) of memory rows.  The messages stay; the bound starts anew."""
        arrays = self.problem.arrays
        limits = self.problem.limits
        self.prices = {r: m for r, m in sorted(prices.items()) if m > 0}
        priced_rows, amounts = list(self.prices), list(self.prices.values())

        @cache
        def paid_in(a: int, b: int) -> float:
            return math.fsum(amounts[bisect_left(priced_rows, a) : bisect_left(priced_rows, b)])

        self._allowance = sum((Fraction(m) * int(limits[r]) for r, m in self.prices.items()), Fraction(0))
        known: dict[tuple[object, ...], tuple[int, Integers]] = {}
        filled = 0

        def priced(layers: tuple[Array, ...], factor: Factor) -> tuple[int, Integers]:
            nonlocal filled
            paid = tuple(paid_in(a, b) for (a, b), _ in factor.usage)
            key = (factor.costs, *zip((x for _, x in factor.usage), paid, strict=True))
            if key not in known:
                extra = np.zeros(layers[0].shape)
                for price, usage in zip(paid, layers[1:], strict=True):
                    if price:
                        amount = price * usage  # presolve may have made it negative
                        extra = extra + (amount - 1e-12 * np.abs(amount))  # rounding must not lift the bound
                # Costs are integers: to add whole ones keeps the sum exact.
                total = layers[0] + np.floor(extra)
                known[key] = filled, np.minimum(total, self.big).astype(np.int64)
                filled += total.size
            return known[key]

        nodes = [priced((arrays[f.costs], *(arrays[x] for _, x in f.usage)), f)[1] for f in self.problem.nodes]
        self._unary = np.concatenate([*nodes, np.zeros(0, np.int64)])
        known, filled = {}, 0
        for e, ((_, _, factor), small) in enumerate(zip(self.problem.edges, self._smalls, strict=True)):
            self.layout.matrix[e] = priced(small.layers, factor)[0]
        matrices = [m for _, m in known.values()]
        self._exact_flipped = np.concatenate([*(m.T.ravel() for m in matrices), np.zeros(0, np.int64)])
        self._flipped = self._exact_flipped.astype(np.float64)
        self._costs = np.concatenate([*(m.ravel() for m in matrices), np.zeros(0, np.int64)]).astype(np.float64)
        self._floats = self._unary.astype(np.float64)
        self.bound = -math.inf

    def forbid(self, keep: NDArray[np.bool_]) -> None:
        """Keeps only some of all nodes' states; what is proven from here on holds for these alone."""
        self._unary = np.where(keep, self._unary, int(self.big))
        self._floats = self._unary.astype(np.float64)

    def run(self, *, sweeps: int, enough: float, stop: Callable[[], bool]) -> bool:
        """Sweeps forward and back; whether the bound stands still, is `enough` or was stopped before the last."""
        mark = self.bound
        shift = float(self.problem.offset - self._allowance)
        arrays = (self._floats, self._costs, self._flipped, self.to_v, self.to_u, self.scores)
        for k in range(sweeps):
            sweep(self.layout, *arrays, forward=True)
            self.bound = max(self.bound, sweep(self.layout, *arrays, forward=False) + shift)
            self.sweeps += 1
            if self.bound >= enough or stop():
                return True
            if (k + 1) % ROUND == 0:
                if self.bound - mark <= STILL * abs(self.bound):
                    return True
                mark = self.bound
        return False

    def certified(self, fine: int = 1) -> Certified:
        """The bound of the present messages in exact integers.  Messages and `above` count in 1 / `fine` of a unit."""
        to_v, to_u = np.rint(self.to_v * fine).astype(np.int64), np.rint(self.to_u * fine).astype(np.int64)
        certified, above = certify(self.layout, self._unary * fine, self._exact_flipped * fine, to_v, to_u)
        total = Fraction(sum(map(int, certified)), fine) + self.problem.offset - self._allowance
        return Certified(math.ceil(total), above, to_u, to_v)


def _starts(counts: Integers | list[int]) -> Integers:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _lists(ends: list[int], nodes: int) -> tuple[Integers, Integers]:
    """Edges grouped by the node in `ends`, in their order: (where each node's begin, edges)."""
    order = np.argsort(np.array(ends, dtype=np.int64), kind="stable").astype(np.int64)
    counts = np.bincount(np.array(ends, dtype=np.int64), minlength=nodes)
    return _starts(counts), order
