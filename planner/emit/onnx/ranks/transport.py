"""Elements of a split dimension that other ranks hold: halos, shifts and every other static rearrangement.

`wanted[j]` are the places along the dimension, in order, that shard j needs; −1 stands for an element that none gives.
What a rank sends is laid out by receiver, and one all-to-all with parts of known sizes brings it there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.emit.onnx.ranks.local import Local, all_to_all_v
from planner.emit.onnx.ranks.writer import Value, Writer

__all__ = ["Indices", "collect", "taken"]

Indices = NDArray[np.int64]


def collect(
    w: Writer, x: Value, dim: int, wanted: Sequence[Indices], factor: str, here: Local, fill: Value | None = None
) -> Value:
    """What this rank wants of the whole tensor whose shard along `dim` is `x`; `fill` (zero) where there is nothing."""
    size, me = x.dims[dim], here.place.index[factor]
    sent = [idx[(idx >= me * size) & (idx < (me + 1) * size)] - me * size for idx in wanted]
    mine = wanted[me]
    owner = np.where(mine < 0, -1, mine // max(size, 1))
    if all(_own(idx, j, size) for j, idx in enumerate(wanted)):
        return taken(w, x, dim, np.where(mine < 0, -1, mine - me * size), fill)
    counts = [int((owner == j).sum()) for j in range(len(wanted))]
    offered = np.concatenate(sent)
    arrived = all_to_all_v(w, w.take(x, offered, dim), here.groups[factor], dim, [len(s) for s in sent], counts)
    starts = np.cumsum([0, *counts])
    place = np.full(len(mine), -1, dtype=np.int64)
    for j in range(len(wanted)):
        (here_j,) = np.nonzero(owner == j)
        place[here_j] = starts[j] + np.arange(len(here_j))
    return taken(w, arrived, dim, place, fill)


def _own(indices: Indices, shard: int, size: int) -> bool:
    return bool(((indices < 0) | (indices // max(size, 1) == shard)).all())


def taken(w: Writer, x: Value, dim: int, places: Indices, fill: Value | None = None) -> Value:
    """Elements of `x` at `places` along `dim`; `fill` (zero) where a place is −1."""
    missing = places < 0
    shape = (*x.dims[:dim], len(places), *x.dims[dim + 1 :])
    empty = w.number(0, x) if fill is None else fill
    if missing.all() and len(places):
        return w.filled(shape, x.dtype) if fill is None else w.join("Add", w.filled(shape, x.dtype), empty)
    found = w.take(x, np.where(missing, 0, places), dim)
    if not missing.any():
        return found
    mask = (~missing).reshape((-1,) + (1,) * (len(shape) - dim - 1))
    return w.where(w.constant(mask), found, empty)
