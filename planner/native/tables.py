"""Min-plus algebra on dense tables (`tables.c`), with the same in NumPy for machines without the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.native.library import library, pointer

__all__ = ["min_sum", "row_classes", "row_difference"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
COMPARED = 1 << 24  # entries looked at, up to which comparing all rows with each other is fastest
MOST_AXES = 32
BLOCK = 1 << 15  # entries worked on at a time without the library: 256 KiB, about a second-level cache


def min_sum(operands: Sequence[Floats], shape: tuple[int, ...]) -> Floats:
    """Minimum over axis 0 of the sum of `operands`, all of `shape` but for axes of size 1, which are repeated."""
    native = library()
    if native is None or len(shape) > MOST_AXES:
        return _min_sum(operands, shape)
    contiguous = [np.ascontiguousarray(o) for o in operands]
    strides = np.zeros((len(contiguous), len(shape)), dtype=np.int64)
    for k, operand in enumerate(contiguous):
        strides[k] = [0 if n == 1 else s // 8 for n, s in zip(operand.shape, operand.strides, strict=True)]
    sizes = np.array(shape, dtype=np.int64)
    data = (ctypes.c_void_p * len(contiguous))(*(o.ctypes.data for o in contiguous))
    values = np.empty(shape[1:])
    work = np.empty(shape[-1])
    native.tables_min_sum(
        ctypes.c_int64(len(shape)),
        pointer(sizes),
        ctypes.c_int64(len(contiguous)),
        data,
        *map(pointer, (strides, values, work)),
    )
    return values


def row_difference(values: Floats) -> Floats:
    """table[j, i] = max over k of values[j, k] - values[i, k].

    Entries may be infinite: where values[i, k] is, k does not raise the difference, which is 0 where none does.
    """
    values = np.ascontiguousarray(values)
    table = np.empty((len(values), len(values)))
    native = library()
    if native is None or not values.size:
        for j, row in enumerate(values):
            with np.errstate(invalid="ignore"):
                difference = row - values
            table[j] = np.where(np.isnan(difference), -np.inf, difference).max(axis=1, initial=-np.inf)
        table[table == -np.inf] = 0
        return table
    rows, columns = map(ctypes.c_int64, values.shape)
    native.tables_row_difference(rows, columns, pointer(values), pointer(table))
    return table


def row_classes(matrix: NDArray[Any]) -> tuple[Integers, Integers]:
    """Classes of identical rows along axis 0: (class of every row, first row of every class)."""
    rows = np.ascontiguousarray(matrix).reshape(len(matrix), -1)
    native = library()
    if native is None or rows.dtype != np.float64 or not 0 < len(rows) * rows.size <= COMPARED:
        return _row_classes(rows)
    classes, first = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    native.tables_row_classes.restype = ctypes.c_int64
    count, width = map(ctypes.c_int64, rows.shape)
    found = native.tables_row_classes(count, width, *map(pointer, (rows, classes, first)))
    return classes, first[:found].copy()


def _row_classes(rows: NDArray[Any]) -> tuple[Integers, Integers]:
    rows = rows + 0.0  # -0.0 and 0.0 are one value
    seen: dict[bytes, int] = {}
    classes = np.empty(len(rows), np.int64)
    first: list[int] = []
    for i, row in enumerate(rows):
        k = seen.setdefault(row.tobytes(), len(first))
        if k == len(first):
            first.append(i)
        classes[i] = k
    return classes, np.asarray(first, np.int64)


def _min_sum(operands: Sequence[Floats], shape: tuple[int, ...]) -> Floats:
    """Smallest operands first, block by block to stay in cache."""
    ordered = sorted(operands, key=lambda o: o.size)
    values = np.full(shape[1:], np.inf)
    for block in _blocks(shape[1:], BLOCK):
        low = values[block]
        pieces = [o[(slice(None), *_within(o, block))] for o in ordered]
        step = max(1, BLOCK // low.size)
        for k in range(0, shape[0], step):
            total = _rows(pieces[0], k, step)
            for piece in pieces[1:]:
                total = total + _rows(piece, k, step)
            np.minimum(low, np.broadcast_to(total, (len(total), *low.shape)).min(axis=0), out=low)
    return values


def _rows(piece: Floats, k: int, step: int) -> Floats:
    return piece if len(piece) == 1 else piece[k : k + step]


def _within(operand: Floats, index: Sequence[slice]) -> tuple[slice, ...]:
    """`index` over the axes after the first, fitted to an operand that is repeated where its size is 1."""
    return tuple(i if n > 1 else slice(None) for i, n in zip(index, operand.shape[1:], strict=True))


def _blocks(shape: tuple[int, ...], target: int) -> Iterator[tuple[slice, ...]]:
    """Slices that cut an array into blocks of about `target` entries, splitting leading axes first."""
    room = target
    steps = []
    for n in reversed(shape):
        step = max(1, min(n, room))
        steps.append(step)
        room = max(1, room // n)
    steps.reverse()
    return product(*([slice(i, min(i + s, n)) for i in range(0, n, s)] for n, s in zip(shape, steps, strict=True)))
