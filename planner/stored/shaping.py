"""What is done to stored tensors without a byte being moved: turned, joined, cut, stacked, and grown with zeros.

Each function gives a tensor whose pieces say where its elements lie in the arrays of those that it was made of.  Where
tensors do not go together, ValueError says so.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from planner.stored.arrays import StoredArray
from planner.stored.moves import Held
from planner.transfer.pieces import Boxes, Integers, Pieces, whole

__all__ = ["cut", "grouped", "interleaved", "padded", "parted", "stacked", "turned", "ungrouped", "unstacked"]

Run = tuple[int, int, int]  # where it begins, its length, where it goes


def turned(h: Held) -> Held:
    """A matrix whose rows are the columns of this one."""
    if len(h.shape) != 2:
        raise ValueError(f"expected a matrix to turn, found the shape {list(h.shape)}")
    p = h.pieces
    pieces = Pieces(p.shape[::-1], Boxes(p.boxes.starts[:, ::-1], p.boxes.stops[:, ::-1]), p.holders, p.inside[:, ::-1])
    return Held(pieces, h.arrays, h.dtype, (1, 0) if h.order is None else None)


def interleaved(parts: Sequence[Held], dim: int, groups: int = 1) -> Held:
    """Tensors behind each other along a dimension; with several groups the first group of each, then the second of
    each, and so on, as heads of queries, keys and values lie together."""
    rest = [(h.dtype, h.order, h.shape[:dim], h.shape[dim + 1 :]) for h in parts]
    if any(dim >= len(h.shape) for h in parts):
        raise ValueError(f"expected a dimension below {len(parts[0].shape)}, found dim {dim} of {_told(parts)}")
    if any(r != rest[0] for r in rest):
        raise ValueError(f"expected tensors that differ in dimension {dim} alone, found {_told(parts)}")
    odd = next((h for h in parts if h.shape[dim] % groups), None)
    if odd is not None:
        raise ValueError(f"expected a dimension {dim} that divides into {groups} groups, found {list(odd.shape)}")
    total = sum(h.shape[dim] for h in parts)
    placed, begin = [], 0
    for h in parts:
        size = h.shape[dim] // groups
        runs = [(g * size, size, g * (total // groups) + begin) for g in range(groups)]
        placed.append(_rearranged(h, dim, runs, total))
        begin += size
    return _together(placed)


def parted(h: Held, dim: int, sizes: Sequence[int], groups: int = 1) -> list[Held]:
    """The tensors of these sizes of which `interleaved` makes this one."""
    if dim >= len(h.shape):
        raise ValueError(f"expected a dimension below {len(h.shape)}, found dim {dim} of {list(h.shape)}")
    if sum(sizes) != h.shape[dim]:
        raise ValueError(f"expected parts that make {h.shape[dim]}, found {list(sizes)}")
    odd = next((n for n in sizes if n % groups), None)
    if odd is not None:
        raise ValueError(f"expected parts that divide into {groups} groups, found one of {odd}")
    out, begin = [], 0
    for total in sizes:
        size = total // groups
        runs = [(g * (h.shape[dim] // groups) + begin, size, g * size) for g in range(groups)]
        out.append(_rearranged(h, dim, runs, total))
        begin += size
    return out


def grouped(h: Held, dim: int, sizes: Sequence[int], groups: int) -> Held:
    """Parts of these sizes, which lie behind each other, group by group."""
    return interleaved(parted(h, dim, sizes), dim, groups)


def ungrouped(h: Held, dim: int, sizes: Sequence[int], groups: int) -> Held:
    """The inverse of `grouped`."""
    return interleaved(parted(h, dim, sizes, groups), dim)


def padded(h: Held, dim: int, size: int) -> Held:
    """Grown to a size of a dimension with zeros at its end."""
    found = h.shape[dim] if dim < len(h.shape) else None
    if found is None or found > size:
        raise ValueError(f"expected dimension {dim} to be at most the {size} it is padded to, found {list(h.shape)}")
    if found == size:
        return h
    shape = (*h.shape[:dim], size - found, *h.shape[dim + 1 :])
    in_array = shape if h.order is None else tuple(shape[d] for d in h.order)
    zeros = StoredArray(Path("."), 0, h.dtype, in_array, data=bytes(h.dtype.itemsize))
    return interleaved([h, Held(whole(shape), (zeros,), h.dtype, h.order)], dim)


def cut(h: Held, dim: int, size: int) -> Held:
    """The first elements of a dimension; the others are left out."""
    found = h.shape[dim] if dim < len(h.shape) else None
    if found is None or found < size:
        raise ValueError(f"expected dimension {dim} to have at least {size}, found {list(h.shape)}")
    return _rearranged(h, dim, [(0, size, 0)], size)


def stacked(parts: Sequence[Held], counts: Sequence[int]) -> Held:
    """Tensors of one shape under leading dimensions of these sizes; the last of them runs fastest."""
    first = parts[0]
    odd = next((h for h in parts if (h.shape, h.dtype, h.order) != (first.shape, first.dtype, first.order)), None)
    if odd is not None:
        raise ValueError(f"expected tensors of one shape and type to stack, found {_told([first, odd])}")
    front, shape = len(counts), (*counts, *first.shape)
    order = None if first.order is None else (*range(front), *(front + d for d in first.order))
    placed = []
    for at, h in zip(np.ndindex(*counts), parts, strict=True):
        p = h.pieces
        low = np.broadcast_to(np.array(at, np.int64), (len(p), front))
        starts, stops = (np.concatenate(x, axis=1) for x in ((low, p.boxes.starts), (low + 1, p.boxes.stops)))
        inside = np.concatenate([np.zeros_like(low), p.inside], axis=1)
        arrays = tuple(
            replace(a, shape=(1,) * front + a.shape, strides=None if a.strides is None else (0,) * front + a.strides)
            for a in h.arrays
        )
        placed.append(Held(Pieces(shape, Boxes(starts, stops), p.holders, inside), arrays, h.dtype, order))
    return _together(placed)


def unstacked(h: Held, front: int) -> list[Held]:
    """The tensors under the leading dimensions, so many; those that `stacked` makes this one of."""
    if front > len(h.shape):
        raise ValueError(f"expected at least {front} dimensions to take apart, found {list(h.shape)}")
    p, shape = h.pieces, h.shape[front:]
    order = None if h.order is None else tuple(d - front for d in h.order if d >= front)
    out = []
    for at in np.ndindex(*h.shape[:front]):
        index = np.array(at, np.int64)
        mine = np.all((p.boxes.starts[:, :front] <= index) & (index < p.boxes.stops[:, :front]), axis=1, keepdims=True)
        own = p.chosen(np.flatnonzero(mine))
        places = own.inside[:, :front] + index - own.boxes.starts[:, :front]
        rows: dict[tuple[int, ...], int] = {}
        holders = [rows.setdefault((int(k), *map(int, row)), len(rows))
                   for k, row in zip(own.holders, places, strict=True)]  # fmt: skip
        arrays = tuple(_row(h.arrays[k], row, h.order) for k, *row in rows)
        boxes = Boxes(own.boxes.starts[:, front:], own.boxes.stops[:, front:])
        pieces = Pieces(shape, boxes, np.array(holders, np.int64), own.inside[:, front:])
        out.append(Held(pieces, arrays, h.dtype, None if order == tuple(range(len(shape))) else order))
    return out


def _row(a: StoredArray, at: Sequence[int], order: Sequence[int] | None) -> StoredArray:
    """What an array has at these indices of the tensor's leading dimensions."""
    places = list(range(len(at))) if order is None else [list(order).index(d) for d in range(len(at))]
    kept = [d for d in range(len(a.shape)) if d not in places]
    shape, item = tuple(a.shape[d] for d in kept), a.dtype.itemsize
    if a.data is not None:
        single = len(a.data) == item  # one element stands for all
        return replace(a, shape=shape, data=a.data if single else _data(a, dict(zip(places, at, strict=True))))
    steps = a.strides or tuple(math.prod(a.shape[d + 1 :]) * item for d in range(len(a.shape)))
    first = sum(i * steps[d] for i, d in zip(at, places, strict=True))
    if a.strides is None and places == list(range(len(at))):
        slices = list(a.segments(first, math.prod(shape) * item))
        begins = itertools.accumulate((n for _, n in slices[:-1]), initial=0)
        extents = tuple((b, offset) for b, (offset, _) in zip(begins, slices, strict=True)) if a.extents else ()
        return replace(a, shape=shape, offset=slices[0][0] if slices else a.offset, extents=extents)
    if a.extents:
        raise ValueError("a turned tensor in several slices of a file cannot be taken apart; turn it in a step before")
    return replace(a, shape=shape, offset=a.offset + first, strides=tuple(steps[d] for d in kept))


def _data(a: StoredArray, at: dict[int, int]) -> bytes:
    assert a.data is not None
    values = np.frombuffer(a.data, a.dtype).reshape(a.shape)
    return values[tuple(at.get(d, slice(None)) for d in range(len(a.shape)))].tobytes()


def _rearranged(h: Held, dim: int, runs: Sequence[Run], size: int) -> Held:
    """A tensor whose dimension has another size, into which ranges of this one's go; what is in none is left out."""
    p, n = h.pieces, len(h.pieces)
    begins, sizes, into = (np.array(x, np.int64) for x in zip(*runs, strict=True))
    low = np.maximum(p.boxes.starts[:, dim, None], begins)
    high = np.minimum(p.boxes.stops[:, dim, None], begins + sizes)
    piece, run = np.nonzero(high > low)
    low, high = low[piece, run], high[piece, run]
    starts, stops, inside = p.boxes.starts[piece], p.boxes.stops[piece], p.inside[piece]
    inside[:, dim] += low - starts[:, dim]
    shift = into[run] - begins[run]
    starts[:, dim], stops[:, dim] = low + shift, high + shift
    holders, arrays = _used(p.holders[piece], h.arrays) if n else (p.holders, h.arrays)
    shape = (*h.shape[:dim], size, *h.shape[dim + 1 :])
    return Held(Pieces(shape, Boxes(starts, stops), holders, inside), arrays, h.dtype, h.order)


def _used(holders: Integers, arrays: tuple[StoredArray, ...]) -> tuple[Integers, tuple[StoredArray, ...]]:
    """Without arrays that no piece lies in."""
    used, numbers = np.unique(holders, return_inverse=True)
    if len(used) == len(arrays) or not len(used):
        return holders, arrays
    return np.asarray(numbers, np.int64).reshape(-1), tuple(arrays[int(k)] for k in used)


def _together(parts: Sequence[Held]) -> Held:
    """All pieces of tensors of one shape."""
    first = parts[0]
    numbers: dict[StoredArray, int] = {}
    holders = []
    for h in parts:
        own = np.array([numbers.setdefault(a, len(numbers)) for a in h.arrays], np.int64)
        holders.append(own[h.pieces.holders])
    pieces = [h.pieces for h in parts]
    starts, stops, inside = (
        np.concatenate(x)
        for x in ([p.boxes.starts for p in pieces], [p.boxes.stops for p in pieces], [p.inside for p in pieces])
    )
    both = Pieces(first.shape, Boxes(starts, stops), np.concatenate(holders), inside)
    return Held(both, tuple(numbers), first.dtype, first.order)


def _told(parts: Sequence[Held]) -> str:
    return ", ".join(f"{h.dtype} {list(h.shape)}" for h in parts[:8]) + (", …" if len(parts) > 8 else "")
