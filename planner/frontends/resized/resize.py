"""New lengths for constants whose values are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["repeat_blocks", "resize_value"]

Array = np.ndarray[Any, Any]


def resize_value(value: Array, axis: int, size: int) -> Array | None:
    """`value` with `size` elements along `axis`: its leading part, or its continuation.

    It continues where neighbours along the axis differ by one step everywhere, or are equal: masks, position
    ids, the sample numbers of index tables.  None where the values do not say how.
    """
    old = value.shape[axis]
    if size <= old:
        return np.ascontiguousarray(np.take(value, range(size), axis=axis))
    first = np.take(value, [0], axis=axis)
    if old == 1 or not (value != first).any():
        return np.ascontiguousarray(np.repeat(first, size, axis=axis))
    if value.dtype.kind not in "iu":
        return None
    steps = np.diff(value, axis=axis)
    step = np.take(steps, [0], axis=axis)
    if (steps != step).any() or len(set(step.reshape(-1).tolist()) - {0}) > 1:
        return None
    shape = [1] * value.ndim
    shape[axis] = size
    counts = np.arange(size, dtype=value.dtype).reshape(shape)
    return np.ascontiguousarray(first + counts * step)


def repeat_blocks(value: Array, axis: int, like: Sequence[tuple[int, int]]) -> Array | None:
    """A dimension whose outermost factor alone changes, from (old, new) pairs: blocks that are all equal are repeated.

    A mask of every window for a batch of samples is such a dimension: what one sample has, every sample has.  None
    where there is one factor, or the blocks differ.
    """
    pairs = [f for f in like if f != (1, 1)]
    if len(pairs) < 2 or any(old != new for old, new in pairs[1:]):
        return None
    old, new = pairs[0]
    if old * math.prod(o for o, _ in pairs[1:]) != value.shape[axis]:
        return None
    blocks = np.split(value, old, axis)
    if any(not np.array_equal(b, blocks[0]) for b in blocks[1:]):
        return None
    return np.concatenate([blocks[0]] * new, axis)
