"""Which boxes have elements in common.

Boxes are sorted along the dimension with the most cuts, so that a box meets few candidates: a tensor of n shards
against one of m costs about n + m, as long as either is cut along few dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.transfer.pieces import FEW, Boxes, BoxesKey, Integers

__all__ = ["Overlaps", "minus", "overlaps"]


@dataclass(frozen=True, slots=True, eq=False)
class Overlaps:
    """Box `left[k]` of the one and box `right[k]` of the other have `boxes[k]` in common."""

    left: Integers
    right: Integers
    boxes: Boxes

    def __len__(self) -> int:
        return len(self.left)


def overlaps(left: Boxes, right: Boxes) -> Overlaps:
    """All pairs that have at least one element in common; boxes of the same tensor.

    The arrays of the result are shared between calls, and cannot be written to.
    """
    if len(left) + len(right) > FEW:
        return _overlaps(left, right)
    return _of_few(left.key, right.key)


@lru_cache(maxsize=4096)
def _of_few(left: BoxesKey, right: BoxesKey) -> Overlaps:
    out = _overlaps(Boxes.of_key(left), Boxes.of_key(right))
    for each in (out.left, out.right, out.boxes.starts, out.boxes.stops):
        each.setflags(write=False)
    return out


def _overlaps(left: Boxes, right: Boxes) -> Overlaps:
    if not len(left) or not len(right):
        none = np.empty(0, np.int64)
        return Overlaps(none, none, Boxes(left.starts[:0], left.stops[:0]))
    if not left.starts.shape[1]:  # scalars
        a, b = (np.asarray(x.reshape(-1), np.int64) for x in np.indices((len(left), len(right))))
        return Overlaps(a, b, left.chosen(a))
    dim = int(np.argmax([len(np.unique(left.starts[:, d])) for d in range(left.starts.shape[1])]))
    order = np.argsort(left.starts[:, dim], kind="stable")
    sorted_starts = left.starts[order, dim]
    longest = int((left.stops[:, dim] - left.starts[:, dim]).max())
    low = np.searchsorted(sorted_starts, right.starts[:, dim] - longest, side="right")
    high = np.searchsorted(sorted_starts, right.stops[:, dim], side="left")
    counts = np.maximum(high - low, 0)
    b = np.repeat(np.arange(len(right), dtype=np.int64), counts)
    behind = np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
    a = np.asarray(order[np.repeat(low, counts) + behind], np.int64)
    starts = np.maximum(left.starts[a], right.starts[b])
    stops = np.minimum(left.stops[a], right.stops[b])
    common = (stops > starts).all(axis=1)
    return Overlaps(a[common], b[common], Boxes(starts[common], stops[common]))


def minus(box: tuple[Integers, Integers], others: Boxes) -> Boxes:
    """What is left of a box without others, as boxes that have nothing in common."""
    left = [(np.asarray(box[0]), np.asarray(box[1]))]
    for start, stop in zip(others.starts, others.stops, strict=True):
        left = [rest for each in left for rest in _without(*each, start, stop)]
    dims = len(box[0])
    if not left:
        return Boxes(np.empty((0, dims), np.int64), np.empty((0, dims), np.int64))
    return Boxes(np.stack([a for a, _ in left]), np.stack([b for _, b in left]))


def _without(low: Integers, high: Integers, start: Integers, stop: Integers) -> list[tuple[Integers, Integers]]:
    if (np.maximum(low, start) >= np.minimum(high, stop)).any():
        return [(low, high)]
    out = []
    low, high = low.copy(), high.copy()
    for d in range(len(low)):
        if low[d] < start[d]:
            below = high.copy()
            below[d] = start[d]
            out.append((low.copy(), below))
            low[d] = start[d]
        if stop[d] < high[d]:
            above = low.copy()
            above[d] = stop[d]
            out.append((above, high.copy()))
            high[d] = stop[d]
    return out
