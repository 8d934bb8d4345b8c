"""Min-plus algebra on dense tables (`tables.c`), with the same in NumPy for machines without the compiled library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from planner.search.native.library import library, pointer

__all__ = ["min_sum", "row_difference"]

Floats = NDArray[np.float64]
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


def row_difference(above: Floats, below: Floats) -> Floats:
    """table[j, i] = max over k of above[j, k] - below[i, k], for two matrices of one shape."""
    above, below = np.ascontiguousarray(above), np.ascontiguousarray(below)
    table = np.empty((len(above), len(above)))
    native = library()
    if native is None or not above.size:
        difference = np.empty_like(above)
        for j, row in enumerate(above):
            np.subtract(row, below, out=difference)
            difference.max(axis=1, out=table[j], initial=-np.inf)
        return table
    rows, columns = map(ctypes.c_int64, above.shape)
    native.tables_row_difference(rows, columns, *map(pointer, (above, below, table)))
    return table


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
