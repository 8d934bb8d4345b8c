"""Elements of a split dimension that another rank holds: halos, shifts and every other static rearrangement.

`wanted[j]` are the global indices along the dimension, in order, that shard j needs; −1 stands for a zero.
All ranks know all of them, so that each sends exactly what is asked of it.  Arrays are of any library that follows the
Python array API standard, but for gradients, which are numpy's.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.kernels.namespaces import array_namespace, device
from planner.kernels.shards import Array
from planner.kernels.spmd import Collective, Received, ShardContext, Sizes, exchange

__all__ = ["CollectiveKernel", "Indices", "collect", "give_back", "part", "taken"]

Indices = NDArray[np.int64]
CollectiveKernel = Generator[Collective, Received, Any]
_FEW: Final = 3  # runs of elements that are cut out and joined rather than looked up one by one


def collect(
    x: Any, dim: int, wanted: Sequence[Indices], factor: str, place: ShardContext, fill: Any = None
) -> CollectiveKernel:
    """What this rank wants of the whole tensor whose shard along `dim` is `x`; `fill` in place of zeros."""
    size, me = x.shape[dim], place.index[factor]
    mine = wanted[me]
    if all((_belongs(idx, j, size) | (idx < 0)).all() for j, idx in enumerate(wanted)):
        return taken(x, dim, np.where(mine < 0, -1, mine - me * size), fill)
    pieces = [
        None if j == me or not len(asked := _held(idx, me, size)) else taken(x, dim, asked - me * size)
        for j, idx in enumerate(wanted)
    ]
    owned = [np.flatnonzero(_belongs(mine, j, size)) for j in range(len(wanted))]
    arriving = tuple(0 if j == me else len(places) for j, places in enumerate(owned))
    received = yield from exchange(pieces, factor, sizes=Sizes(x, dim, arriving))
    parts = [taken(x, dim, mine[owned[me]] - me * size) if j == me else p for j, p in enumerate(received)]
    order = np.full(len(mine), -1, dtype=np.int64)
    order[np.concatenate(owned)] = np.arange(sum(map(len, owned)))
    joined = array_namespace(x).concat([p for p in parts if p is not None], axis=dim)
    return taken(joined, dim, order, fill)


def taken(x: Any, dim: int, places: Indices, fill: Any = None) -> Any:
    """Elements of `x` at `places` along `dim`; `fill` (zero) where a place is −1."""
    xp = array_namespace(x)

    def empty(length: int) -> Any:
        shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
        return xp.zeros(shape, dtype=x.dtype, device=device(x)) if fill is None else xp.broadcast_to(fill, shape)

    follows = np.diff(places) == np.where(places[:-1] < 0, 0, 1)
    breaks = np.flatnonzero(~follows) + 1
    missing = places < 0
    if len(breaks) < _FEW:
        runs = np.split(places, breaks)
        parts = [empty(len(r)) if len(r) and r[0] < 0 else part(x, dim, *_bounds(r)) for r in runs]
        if len(places) and missing.all():  # a gradient must reach all ranks that have exchanged something
            parts.append(part(x, dim, 0, 0))
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=dim)
    if missing.any():
        x, places = xp.concat([x, empty(1)], axis=dim), np.where(missing, x.shape[dim], places)
    return xp.take(x, xp.asarray(places, dtype=xp.int64, device=device(x)), axis=dim)


def _bounds(run: Indices) -> tuple[int, int]:
    return (int(run[0]), int(run[-1]) + 1) if len(run) else (0, 0)


def part(x: Any, dim: int, start: int, stop: int) -> Any:
    """Consecutive elements along a dimension."""
    return x if (start, stop) == (0, x.shape[dim]) else x[(*(slice(None),) * dim, slice(start, stop))]


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
