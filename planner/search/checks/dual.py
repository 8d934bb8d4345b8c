"""The arithmetic of one leaf of a certificate: exact integers, nothing shared with the solvers.

Tables are kept over classes of states that they cannot tell apart, equal tables are one object, and equal eliminations
are done once: otherwise wide or deep problems would take the checker far longer than the solver.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.search.certificates.certificate import Leaf
from planner.search.checks.fit import Nothing, fitting
from planner.search.problem import FORBIDDEN, Edge, Node, Problem

__all__ = ["Arithmetic", "Overflow", "Refused", "WorkBudget", "leaf_minimum"]

MOST_ENTRIES = 1 << 24  # of one table
MOST_WORK = 1 << 33  # entries added up in one check: a minute or so
Values = NDArray[Any]
Allowed = Mapping[int, NDArray[np.bool_]]  # node -> its allowed states; absent: all


class Refused(Exception):
    """The certificate is malformed, or asks for more than the checker does; the message says where."""


class Overflow(Exception):
    """A sum might leave 64-bit integers."""


class _Impossible(Exception):
    """Every choice uses a forbidden entry."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Integers of 64 bits, or of any size where these do not do; entries from `infinite` on are forbidden."""

    wide: bool = False

    @property
    def infinite(self) -> int:
        return 1 << 4096 if self.wide else 1 << 61

    def array(self, values: Values) -> Values:
        return values.astype(object if self.wide else np.int64)

    def fits(self, *magnitudes: int) -> None:
        """Raises `Overflow` unless sums of entries of these magnitudes stay finite."""
        if sum(magnitudes) >= self.infinite >> 1:
            raise Overflow

    def sum(self, a: Values, b: Values) -> Values:
        """Forbidden where either is."""
        total = a + b
        return np.where((a >= self.infinite) | (b >= self.infinite), self.infinite, total)

    def largest(self, values: Values) -> int:
        """Largest magnitude of a finite entry."""
        finite = values[values < self.infinite]
        return max(abs(int(finite.max())), abs(int(finite.min()))) if finite.size else 0

    def content(self, values: Values) -> Hashable:
        return (values.shape, repr(values.tolist()) if self.wide else values.tobytes())


@dataclass(slots=True)
class WorkBudget:
    """Entries that may still be added up; `Refused` beyond, so that no certificate keeps the checker for ever."""

    left: int = MOST_WORK

    def spend(self, entries: int) -> None:
        self.left -= entries
        if self.left < 0:
            raise Refused(f"it takes more work than the checker does ({MOST_WORK} entries)")


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """`values[c_1, c_2, ...]` over the classes `maps[k][x]` of the state x of its k-th node."""

    values: Values
    maps: tuple[NDArray[np.int64], ...]
    magnitude: int


def leaf_minimum(problem: Problem, leaf: Leaf, allowed: Allowed, exact: Arithmetic, work: WorkBudget) -> int | None:
    """A lower bound on the minimum that the leaf speaks of, times its denominator; None: no choice is allowed."""
    try:
        return _Leaf(problem, leaf, allowed, exact, work).minimum()
    except _Impossible:
        return None


class _Leaf:
    def __init__(self, problem: Problem, leaf: Leaf, allowed: Allowed, exact: Arithmetic, work: WorkBudget) -> None:
        self.problem, self.leaf, self.exact, self.work = problem, leaf, exact, work
        self.memo: dict[Hashable, Any] = {}
        self.interned: dict[Hashable, Any] = {}
        instants = sorted(leaf.prices)
        self.instants = [t for t, _ in instants]
        self.paid = [0, *accumulate(p for _, p in instants)]
        self.total = -sum(p for _, p in instants) * (problem.limit or 0)
        self.own = [self._priced(n) for n in problem.nodes]
        try:
            fits = fitting(problem, allowed)
        except Nothing:
            raise _Impossible from None
        for v, states in enumerate(fits.nodes):
            if not states.all():
                self.own[v] = self._intern(np.where(states, self.own[v], exact.infinite))
        self.tables: dict[tuple[int, ...], _Table] = {}
        named = () if leaf.messages is None else leaf.messages.edges
        self.messaged: set[tuple[int, ...]] = {(min(pair), max(pair)) for pair in named}
        self.around: list[set[tuple[int, ...]]] = [set() for _ in problem.nodes]
        pairs: dict[tuple[int, int], list[Values]] = {}
        for k, e in enumerate(problem.edges):
            matrix = self._priced(e)
            if e.usage is not None and k in fits.edges:
                matrix = self._intern(np.where(fits.edges[k], matrix, exact.infinite))
            pairs.setdefault((min(e.u, e.v), max(e.u, e.v)), []).append(matrix if e.u < e.v else self._turned(matrix))
        for pair, matrices in pairs.items():
            self._put(pair, self._once(("pair", *map(id, matrices)), lambda m=matrices: self._pair(m)))

    def _once(self, key: Hashable, compute: Any) -> Any:
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    def _intern(self, values: Values) -> Values:
        return self.interned.setdefault(self.exact.content(values), values)

    def _priced(self, item: Node | Edge) -> Values:
        """Costs times the denominator, and what is held priced."""
        price = 0
        if item.usage is not None and item.interval is not None and item.interval[0] < item.interval[1]:
            first, last = (bisect_left(self.instants, t) for t in item.interval)
            price = self.paid[last] - self.paid[first]
        usage = item.usage if price else None

        def compute() -> Values:
            barred = item.costs >= FORBIDDEN
            factor = self.leaf.denominator if self.leaf.costs else 0
            largest = factor * max((abs(int(c)) for c in item.costs[~barred].flat), default=0) if factor else 0
            held = 0 if usage is None else price * int(np.abs(usage).max(initial=0))
            self.exact.fits(largest, held)
            values = self.exact.array(np.where(barred, 0, item.costs)) * factor
            if usage is not None:
                values = values + self.exact.array(usage) * price
            return self._intern(np.where(barred, self.exact.infinite, values))

        return self._once(("priced", id(item.costs), id(usage), price), compute)

    def _turned(self, matrix: Values) -> Values:
        return self._once(("turned", id(matrix)), lambda: self._intern(np.ascontiguousarray(matrix.T)))

    def _pair(self, matrices: Sequence[Values]) -> _Table:
        self.exact.fits(*(self.exact.largest(m) for m in matrices))
        total = matrices[0]
        for m in matrices[1:]:
            total = self.exact.sum(total, m)
        return self._compressed(total, tuple(self._map(np.arange(n)) for n in total.shape))

    def _compressed(self, values: Values, maps: Sequence[NDArray[np.int64]]) -> _Table:
        """The table with equal slices merged; the one object of its content."""
        classes_of = list(maps)
        for axis in range(values.ndim):
            seen: dict[Hashable, int] = {}
            first: list[int] = []
            classes = np.empty(values.shape[axis], np.int64)
            turned = np.moveaxis(values, axis, 0)
            for i in range(len(classes)):
                k = seen.setdefault(self.exact.content(turned[i : i + 1]), len(first))
                if k == len(first):
                    first.append(i)
                classes[i] = k
            if len(first) < len(classes):
                values = np.take(values, first, axis=axis)
                classes_of[axis] = self._map(classes[classes_of[axis]])
        values = np.ascontiguousarray(values)
        key = ("table", self.exact.content(values), *map(id, classes_of))
        return self._once(key, lambda: _Table(values, tuple(classes_of), self.exact.largest(values)))

    def _map(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.interned.setdefault(("map", classes.tobytes()), classes)

    def _put(self, scope: tuple[int, ...], table: _Table) -> None:
        """Adds a table; nodes it does not depend on leave its scope, unless messages will be taken from it."""
        depends = [k for k, n in enumerate(table.values.shape) if n > 1 or scope in self.messaged]
        if not depends:
            value = int(table.values.flat[0])
            if value >= self.exact.infinite:
                raise _Impossible
            self.total += value
            return
        if len(depends) < len(scope):
            values = table.values.reshape([table.values.shape[k] for k in depends])
            scope = tuple(scope[k] for k in depends)
            table = self._compressed(values, [table.maps[k] for k in depends])
        if len(scope) == 1:
            self._raise(scope[0], table.values[table.maps[0]])
            return
        known = self.tables.get(scope)
        if known is not None:
            old = known
            table = self._once(("plus", id(old), id(table)), lambda: self._plus(old, table))
        self.tables[scope] = table
        for v in scope:
            self.around[v].add(scope)

    def _raise(self, v: int, values: Values) -> None:
        """Adds a vector to the node's own."""
        self.exact.fits(self.exact.largest(self.own[v]), self.exact.largest(values))
        self.own[v] = self._intern(self.exact.sum(self.own[v], values))

    def _plus(self, a: _Table, b: _Table) -> _Table:
        self.exact.fits(a.magnitude, b.magnitude)
        maps, (left, right) = self._refined([[x, y] for x, y in zip(a.maps, b.maps, strict=True)])
        return self._compressed(self.exact.sum(a.values[np.ix_(*left)], b.values[np.ix_(*right)]), maps)

    def _refined(
        self, maps: Sequence[Sequence[NDArray[np.int64]]]
    ) -> tuple[list[NDArray[np.int64]], list[list[NDArray[np.int64]]]]:
        """Per axis the common refinement of its maps, and per map's position the class each refined class lies in."""
        joint = []
        looked_up: list[list[NDArray[np.int64]]] = [[] for _ in maps[0]]
        for own in maps:
            _, first, classes = np.unique(np.stack(own, 1), axis=0, return_index=True, return_inverse=True)
            joint.append(self._map(classes.reshape(-1).astype(np.int64)))
            for k, m in enumerate(own):
                looked_up[k].append(m[first])
        return joint, looked_up

    def minimum(self) -> int:
        for v in self.leaf.order:
            self._eliminate(v)
        gone = set(self.leaf.order)
        if self.leaf.messages is not None:
            self._shift(gone)
        for v, own in enumerate(self.own):
            if v not in gone:
                self._least(own)
        for table in self.tables.values():
            self._least(table.values)
        return self.total

    def _least(self, values: Values) -> None:
        least = int(values.min())
        if least >= self.exact.infinite:
            raise _Impossible
        self.total += least

    def _eliminate(self, v: int) -> None:
        scopes = sorted(self.around[v])
        tables = [self.tables.pop(s) for s in scopes]
        for scope in scopes:
            for u in scope:
                self.around[u].discard(scope)
        others = sorted({u for s in scopes for u in s if u != v})
        place = {u: k for k, u in enumerate([v, *others])}
        pattern = tuple((id(t), tuple(place[u] for u in s)) for t, s in zip(tables, scopes, strict=True))
        key = ("eliminate", id(self.own[v]), pattern)
        least, table = self._once(key, lambda: self._minimised(v, self.own[v], tables, [p for _, p in pattern]))
        self.total += least
        if table is not None:
            self._put(tuple(others), table)

    def _minimised(
        self, v: int, own: Values, tables: Sequence[_Table], axes: Sequence[tuple[int, ...]]
    ) -> tuple[int, _Table | None]:
        """min over the node on axis 0 of its own vector and the tables: (least entry, the rest over the others)."""
        self.exact.fits(self.exact.largest(own), *(t.magnitude for t in tables))
        if not tables:
            least = int(own.min())
            if least >= self.exact.infinite:
                raise _Impossible
            return least, None
        count = 1 + max(max(a) for a in axes)
        maps: list[NDArray[np.int64]] = []
        looked_up: list[dict[int, NDArray[np.int64]]] = [{} for _ in tables]
        for axis in range(count):
            found = [(k, t.maps[a.index(axis)]) for k, (t, a) in enumerate(zip(tables, axes, strict=True)) if axis in a]
            joint, parts = self._refined([[m for _, m in found]])
            maps.append(joint[0])
            for (k, _), part in zip(found, parts, strict=True):
                looked_up[k][axis] = part[0]
        shape = [int(m.max()) + 1 for m in maps]
        size = int(np.prod(shape[1:], dtype=np.float64))
        if size > MOST_ENTRIES:
            raise Refused(f"the order makes a table of {size} entries at node {v}; at most {MOST_ENTRIES} are filled")
        self.work.spend(size * shape[0] * len(tables))
        operands = []
        for k, (t, a) in enumerate(zip(tables, axes, strict=True)):
            turned = sorted(range(len(a)), key=a.__getitem__)
            values = t.values[np.ix_(*(looked_up[k][axis] for axis in a))].transpose(turned)
            wide = [1] * count
            for axis in a:
                wide[axis] = shape[axis]
            operands.append(values.reshape(wide))
        result = np.full(shape[1:], self.exact.infinite, dtype=object if self.exact.wide else np.int64)
        for c in range(shape[0]):
            state = int(own[maps[0] == c].min())
            if state < self.exact.infinite:
                total = self.exact.array(np.full((1,) * (count - 1), state))
                for operand in operands:
                    total = self.exact.sum(total, operand[c])
                result = np.minimum(result, total)
        least = int(result.min())
        if least >= self.exact.infinite:
            raise _Impossible
        shifted = np.where(result >= self.exact.infinite, self.exact.infinite, result - least)
        return least, self._compressed(shifted, maps[1:])

    def _shift(self, gone: set[int]) -> None:
        messages = self.leaf.messages
        assert messages is not None
        for k, ((u, v), to_u, to_v) in enumerate(zip(messages.edges, messages.to_u, messages.to_v, strict=True)):
            if u in gone or v in gone or u == v:
                raise Refused(
                    f"message {k} is between nodes {u} and {v}: expected two different nodes not in the order"
                )
            if len(to_u) != len(self.own[u]) or len(to_v) != len(self.own[v]):
                raise Refused(f"message {k}: expected {len(self.own[u])} and {len(self.own[v])} numbers, one per state")
            self.work.spend(len(to_u) * len(to_v))
            low, high = self.exact.array(to_u), self.exact.array(to_v)
            if u > v:
                u, v, low, high = v, u, high, low
            known = self.tables.get((u, v))
            sizes = [self.exact.largest(low), self.exact.largest(high), 0 if known is None else known.magnitude]
            self.exact.fits(*sizes)
            matrix = -low[:, None] - high[None, :]
            if known is not None:
                full = known.values[np.ix_(*known.maps)]
                matrix = np.where(full >= self.exact.infinite, self.exact.infinite, full + matrix)
            barred = (self.own[u] >= self.exact.infinite)[:, None] | (self.own[v] >= self.exact.infinite)[None, :]
            if barred.any():
                matrix = np.where(barred, self.exact.infinite, matrix)
            trivial = (np.arange(len(low)), np.arange(len(high)))
            self.tables[u, v] = _Table(matrix, trivial, sum(sizes))
            self._raise(u, low)
            self._raise(v, high)
