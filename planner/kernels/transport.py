"""Elements of a split dimension that another rank holds: halos, shifts and every other static rearrangement.

`wanted[j]` are the global indices along the dimension, in order, that shard j needs; −1 stands for a zero.
All ranks know all of them, so that each sends exactly what is asked of it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from planner.kernels.shards import Array
from planner.kernels.spmd import Collective, Received, ShardContext, exchange

__all__ = ["CollectiveKernel", "Indices", "collect", "give_back"]

Indices = NDArray[np.int64]
CollectiveKernel = Generator[Collective, Received, Array]


def collect(x: Array, dim: int, wanted: Sequence[Indices], factor: str, place: ShardContext) -> CollectiveKernel:
    """What this rank wants of the whole tensor whose shard along `dim` is `x`."""
    size, me = x.shape[dim], place.index[factor]
    pieces = [
        None if j == me or not len(mine := _held(idx, me, size)) else x.take(mine - me * size, axis=dim)
        for j, idx in enumerate(wanted)
    ]
    received = yield from exchange(pieces, factor)
    out = np.zeros((*x.shape[:dim], len(wanted[me]), *x.shape[dim + 1 :]), dtype=x.dtype)
    slots = np.moveaxis(out, dim, 0)
    for j, piece in enumerate(received):
        here = _belongs(wanted[me], j, size)
        if here.any():
            part = x.take(wanted[me][here] - me * size, axis=dim) if j == me else piece
            assert part is not None
            slots[here] = np.moveaxis(part, dim, 0)
    return out


def give_back(
    g: Array, dim: int, wanted: Sequence[Indices], size: int, factor: str, place: ShardContext
) -> CollectiveKernel:
    """The transpose of `collect`: gradients of collected elements return to their owners and add up there.

    `size` is the length of a shard along `dim`.
    """
    me = place.index[factor]
    parts = [
        g.take(np.flatnonzero(here), axis=dim) if (here := _belongs(wanted[me], j, size)).any() else None
        for j in range(len(wanted))
    ]
    received = yield from exchange([None if j == me else p for j, p in enumerate(parts)], factor)
    out = np.zeros((*g.shape[:dim], size, *g.shape[dim + 1 :]), dtype=g.dtype)
    slots = np.moveaxis(out, dim, 0)
    for j, piece in enumerate(received):
        part = parts[me] if j == me else piece
        if part is not None:
            np.add.at(slots, _held(wanted[j], me, size) - me * size, np.moveaxis(part, dim, 0))
    return out


def _belongs(indices: Indices, shard: int, size: int) -> NDArray[np.bool_]:
    return (indices >= shard * size) & (indices < (shard + 1) * size)


def _held(indices: Indices, shard: int, size: int) -> Indices:
    return indices[_belongs(indices, shard, size)]
