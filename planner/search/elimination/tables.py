"""Cost tables over compressed axes, and the one operation on them: eliminating a variable.

A table's axis does not run over a variable's states but over *classes* of them: states that the table
cannot tell apart share an entry (a hub of a thousand states looks to each of its consumers like a few dozen).
Eliminating x from tables T_1 … T_m computes, over the common refinement of the classes,

    R[others] = min_x sum_k T_k[others, x]

and is memoised under the numbers of the tables and the way their axes coincide, so that the copies of a
repeated layer cost one look-up.  Tables are stored with their least entry subtracted, hence non-negative,
which keeps sums small and lets chains of equal layers run into a fixed point.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.native.tables import min_sum, row_classes
from planner.search.reduction.arrays import Array
from planner.search.reduction.reduced import Infeasible

__all__ = ["Elimination", "TableStore", "TooLarge"]

Key = tuple[tuple[int, tuple[int, ...]], ...]  # (table, local variable of each of its axes); variable 0 goes


class TooLarge(Exception):
    """A table would exceed the size cap, or one elimination the work cap; the caller needs another method."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    values: Array
    maps: tuple[int, ...]  # per axis: number of the map from states to classes


@dataclass(frozen=True, slots=True, eq=False)
class Elimination:
    """`table` is the number of the result (None when no variable is left), `offset` what was subtracted from
    it.  `operands`, `cheapest` and `maps` let `best` find the eliminated variable's state again, which is cheaper
    than storing an argument for every entry of the minimum: one backtrack needs only one of them."""

    table: int | None
    offset: float
    operands: tuple[Array, ...]  # the variable that goes first, then one axis per other variable (size 1: absent)
    cheapest: NDArray[np.int64]  # the state standing for each class of the variable that goes
    maps: tuple[Array, ...]  # per other variable: class of each state
    found: dict[tuple[int, ...], int]

    def best(self, states: Sequence[int]) -> int:
        """The best state of the eliminated variable (the first of equals) given the states of the others."""
        index = tuple(int(m[x]) for m, x in zip(self.maps, states, strict=True))
        if index not in self.found:
            total = _column_at(self.operands[0], index)
            for operand in self.operands[1:]:
                total = total + _column_at(operand, index)
            self.found[index] = int(self.cheapest[np.argmin(total)])
        return self.found[index]


class TableStore:
    """Interned tables and class maps with memoised operations."""

    def __init__(
        self,
        *,
        size_cap: int = 1 << 24,
        work_cap: int = 1 << 32,
        total_cap: int = 1 << 62,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.size_cap, self.work_cap, self.total_cap, self.stop = size_cap, work_cap, total_cap, stop
        self.tables: list[Table] = []
        self.maps: list[Array] = []
        self.counts: list[int] = []  # classes of each map
        self._table_numbers: dict[tuple[object, ...], int] = {}
        self._map_numbers: dict[bytes, int] = {}
        self._memo: dict[Key, Elimination] = {}
        self._leaves: dict[Hashable, tuple[int, float]] = {}
        self._refined: dict[tuple[int, ...], tuple[int, tuple[Array, ...]]] = {}
        self.hits = self.misses = 0
        self.entries = 0  # work done: entries of all joint tables so far
        self._base = 0

    def leaf(self, key: Hashable, values: Array) -> tuple[int, float]:
        """(number, subtracted minimum) of a table given over states; `key` identifies its content."""
        found = self._leaves.get(key)
        if found is None:
            trivial = tuple(self._map(np.arange(n)) for n in values.shape)
            found = self._leaves[key] = self._intern(values, trivial)
        return found

    def known_leaf(self, key: Hashable) -> tuple[int, float] | None:
        return self._leaves.get(key)

    def trim(self, most_tables: int) -> None:
        """Forgets everything when more tables are held; results handed out stay valid, numbers do not."""
        if len(self.tables) > most_tables:
            self.tables.clear()
            self._table_numbers.clear()
            self._memo.clear()
            self._leaves.clear()

    def refine(self, maps: tuple[int, ...]) -> tuple[int, tuple[Array, ...]]:
        """Common refinement: (map number, for each given map the class its refined classes lie in)."""
        found = self._refined.get(maps)
        if found is None:
            joint = self.maps[maps[0]]
            for m in maps[1:]:
                joint = np.unique(joint * self.counts[m] + self.maps[m], return_inverse=True)[1]
            number = self._map(joint)
            first = np.unique(joint, return_index=True)[1]
            found = self._refined[maps] = (number, tuple(self.maps[m][first] for m in maps))
        return found

    def refined_count(self, maps: tuple[int, ...]) -> int:
        return self.counts[maps[0]] if len(maps) == 1 else self.counts[self.refine(maps)[0]]

    def eliminate(self, key: Key) -> Elimination:
        """Eliminates local variable 0 from the tables of `key`; variables are numbered by first appearance."""
        found = self._memo.get(key)
        if found is None:
            self.misses += 1
            found = self._memo[key] = self._eliminate(key)
        else:
            self.hits += 1
        return found

    def _eliminate(self, key: Key) -> Elimination:
        if self.stop():
            raise TooLarge("the time is up")
        unary = [t for t, axes in key if axes == (0,)]
        others = [(self.tables[t], axes) for t, axes in key if axes != (0,)]
        own = None  # cost of each state by itself
        for t in unary:
            values = self.tables[t].values[self.maps[self.tables[t].maps[0]]]
            own = values if own is None else own + values
        if not others:
            assert own is not None
            state = int(np.argmin(own))
            if np.isinf(own[state]):
                raise Infeasible
            return Elimination(None, float(own[state]), (own,), np.arange(len(own)), (), {})

        variables = 1 + max(v for _, axes in others for v in axes)
        sides: list[list[int]] = [[] for _ in range(variables)]  # class maps met on each variable
        for table, axes in others:
            for m, v in zip(table.maps, axes, strict=True):
                if m not in sides[v]:
                    sides[v].append(m)
        refined = [self.refine(tuple(maps)) for maps in sides]
        shape = tuple(self.counts[number] for number, _ in refined)
        size = int(np.prod(shape[1:], dtype=np.float64))
        if size > self.size_cap or size * shape[0] > self.work_cap:
            raise TooLarge(f"eliminating a variable makes a table of {shape[1:]} from {shape[0]} classes")
        self.entries += size * shape[0]
        if self.entries > self.total_cap:
            raise TooLarge(f"the tables have more than {self.total_cap} entries in all")

        classes = self.maps[refined[0][0]]
        if own is None:
            own = np.zeros(len(classes))
        order = np.lexsort((own, classes))  # cheapest state of each class of the variable that goes
        _, start = np.unique(classes[order], return_index=True)
        cheapest = order[start]

        operands: dict[tuple[int, ...], Array] = {
            (shape[0],) + (1,) * (variables - 1): _column(own[cheapest], variables)
        }
        for table, axes in others:
            looked_up = [refined[v][1][sides[v].index(m)] for m, v in zip(table.maps, axes, strict=True)]
            operand = _aligned(table.values[np.ix_(*looked_up)], axes, variables)
            known = operands.get(operand.shape)
            operands[operand.shape] = operand if known is None else known + operand
        summands = tuple(sorted(operands.values(), key=lambda o: o.size))
        numbers = tuple(number for number, _ in refined[1:])
        table_number, offset = self._intern(min_sum(summands, shape), numbers)
        return Elimination(table_number, offset, summands, cheapest, tuple(self.maps[n] for n in numbers), {})

    def _intern(self, values: Array, maps: Sequence[int]) -> tuple[int, float]:
        least = float(values.min())
        if np.isinf(least):
            raise Infeasible
        if least:
            values = values - least
        numbers = list(maps)
        for axis in range(values.ndim):
            classes, first = row_classes(np.moveaxis(values, axis, 0))
            if len(first) < len(classes):
                values = np.take(values, first, axis=axis)
                numbers[axis] = self._map(classes[self.maps[numbers[axis]]])
        values = np.ascontiguousarray(values)
        digest = hashlib.blake2b(values.data, digest_size=20).digest()
        key = (tuple(numbers), values.shape, digest)
        number = self._table_numbers.setdefault(key, len(self.tables))
        if number == len(self.tables):
            self.tables.append(Table(values, tuple(numbers)))
        return number, least

    def squeezed(self, leaf: tuple[int, tuple[int, ...]]) -> tuple[int, tuple[int, ...]]:
        """The table (with its scope) less the variables it does not depend on."""
        number, scope = leaf
        table = self.tables[number]
        dims = [k for k, m in enumerate(table.maps) if self.counts[m] > 1]
        if len(dims) == len(scope):
            return leaf
        values = table.values.reshape([table.values.shape[k] for k in dims])
        return self._intern(values, [table.maps[k] for k in dims])[0], tuple(scope[k] for k in dims)

    def _map(self, classes: Array) -> int:
        key = classes.astype(np.int64).tobytes()
        number = self._map_numbers.setdefault(key, len(self.maps))
        if number == len(self.maps):
            self.maps.append(classes)
            self.counts.append(int(classes.max()) + 1)
        return number


def _aligned(values: Array, axes: tuple[int, ...], variables: int) -> Array:
    """`values` with one axis per variable (size 1 where absent), the variable that goes first."""
    order = sorted(range(len(axes)), key=axes.__getitem__)
    shape = [1] * variables
    for i in order:
        shape[axes[i]] = values.shape[i]
    return np.ascontiguousarray(values.transpose(order)).reshape(shape)


def _column(values: Array, variables: int) -> Array:
    return values.reshape(-1, *(1,) * (variables - 1))


def _column_at(operand: Array, index: Sequence[int]) -> Array:
    """The column over the first axis at `index` over the others, where an operand of size 1 is broadcast."""
    at: tuple[Any, ...] = tuple(i if n > 1 else 0 for i, n in zip(index, operand.shape[1:], strict=True))
    column: Array = operand[(slice(None), *at)]
    return column
