"""Pieces of a tensor: boxes of it, each in the array of a holder.

Whatever a framework does to a tensor comes to this form: even and uneven shards, replicas, shards in several pieces
(queries, keys and values of one matrix, each split by itself), pipeline stages that hold it or do not.  A holder is a
rank, or any other thing that has one array of the tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout

__all__ = ["FEW", "Boxes", "BoxesKey", "Pieces", "laid_out", "whole"]

Integers = NDArray[np.int64]
BoxesKey: TypeAlias = tuple[tuple[int, int], bytes, bytes]  # shape of the arrays, starts, stops
FEW: Final = 64  # boxes that are compared once: a model's tensors of a shape are laid out alike


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """`starts` and `stops`, (boxes, dimensions): half-open ranges of elements."""

    starts: Integers
    stops: Integers

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def volumes(self) -> Integers:
        """Elements of each box."""
        return np.asarray(np.prod(self.stops - self.starts, axis=1, dtype=np.int64))

    @property
    def key(self) -> BoxesKey:
        """Equal for equal boxes."""
        starts, stops = (np.asarray(a, np.int64) for a in (self.starts, self.stops))
        return (starts.shape[0], starts.shape[1]), starts.tobytes(), stops.tobytes()

    @classmethod
    def of_key(cls, key: BoxesKey) -> Boxes:
        """The boxes with this key; their arrays cannot be written to."""
        shape, starts, stops = key
        return cls(np.frombuffer(starts, np.int64).reshape(shape), np.frombuffer(stops, np.int64).reshape(shape))

    def chosen(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Boxes:
        return Boxes(self.starts[which], self.stops[which])


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Box k of a tensor of `shape` lies in the array of `holders[k]`, there from element `inside[k]` on."""

    shape: tuple[int, ...]
    boxes: Boxes
    holders: Integers
    inside: Integers

    def __len__(self) -> int:
        return len(self.holders)

    def of(self, holder: int) -> Pieces:
        """Those of one holder."""
        return self.chosen(self.holders == holder)

    def chosen(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> Pieces:
        return Pieces(self.shape, self.boxes.chosen(which), self.holders[which], self.inside[which])

    def distinct(self) -> tuple[Integers, Integers]:
        """(the first piece of each distinct box, which of them each piece is).  Not to be written to."""
        if not len(self):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return _distinct_few(self.boxes.key) if len(self) <= FEW else _distinct(self.boxes)

    def local_shape(self, holder: int) -> tuple[int, ...]:
        """Shape of the holder's array."""
        mine = self.of(holder)
        if not len(mine):
            return (0,) * len(self.shape)
        return tuple(int(n) for n in (mine.inside + mine.boxes.stops - mine.boxes.starts).max(axis=0))


@lru_cache(maxsize=4096)
def _distinct_few(key: BoxesKey) -> tuple[Integers, Integers]:
    out = _distinct(Boxes.of_key(key))
    for each in out:
        each.setflags(write=False)  # since calls share it
    return out


def _distinct(boxes: Boxes) -> tuple[Integers, Integers]:
    both = np.concatenate([boxes.starts, boxes.stops], axis=1)
    if not both.shape[1]:
        return np.zeros(1, np.int64), np.zeros(len(boxes), np.int64)
    _, first, which = np.unique(both, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first, np.int64), np.asarray(which, np.int64).reshape(-1)


def whole(shape: Sequence[int], holders: Sequence[int] = (0,)) -> Pieces:
    """Every holder has all of it."""
    n, d = len(holders), len(shape)
    zeros = np.zeros((n, d), np.int64)
    stops = np.broadcast_to(np.asarray(shape, np.int64), (n, d)).copy()
    return Pieces(tuple(shape), Boxes(zeros, stops), np.asarray(holders, np.int64), zeros)


def laid_out(shape: Sequence[int], layout: Layout, mesh: DeviceMesh, *, first: int = 0) -> Pieces:
    """As a layout spreads it over the ranks of a mesh, which count from `first`.

    A dimension that does not divide is cut as torch.chunk cuts it: parts of the size rounded up, the last ones smaller
    or empty.  Where a dimension is split in parts, each part is cut so, and a rank's array has its pieces of all parts
    behind each other.

    Raises:
        ValueError: a dimension that does not divide into the parts of the layout; a pending sum.
    """
    if layout.partial:
        raise ValueError(f"{layout} is a pending sum, of which no rank has the values")
    ranks = mesh.devices
    places = np.unravel_index(np.arange(ranks), mesh.shape) if mesh.axes else ()
    coordinates = dict(zip(mesh.names, places, strict=True))
    dims = []
    for d, axes in enumerate(layout.dims):
        parts = layout.parts_of(d)
        if shape[d] % parts:
            raise ValueError(f"dimension {d} of size {shape[d]} does not divide into {parts} parts")
        index = np.zeros(ranks, np.int64)
        for a in axes:
            index = index * mesh.sizes[a] + coordinates[a]
        size = shape[d] // parts
        step = -(-size // mesh.size(axes))
        low, high = (np.minimum(index * step, size), np.minimum((index + 1) * step, size))
        dims.append([(low + p * size, high + p * size, p * (high - low)) for p in range(parts)])
    rows = [_stacked(ranks, each, first) for each in itertools.product(*dims)]
    starts, stops, inside, holders = (np.concatenate(x) for x in zip(*rows, strict=True))
    kept = (stops > starts).all(axis=1)
    return Pieces(tuple(shape), Boxes(starts[kept], stops[kept]), holders[kept], inside[kept])


def _stacked(
    ranks: int, dims: Sequence[tuple[Integers, Integers, Integers]], first: int
) -> tuple[Integers, Integers, Integers, Integers]:
    holders = np.arange(first, first + ranks, dtype=np.int64)
    if not dims:
        none = np.zeros((ranks, 0), np.int64)
        return none, none, none, holders
    starts, stops, inside = (np.stack(x, axis=1) for x in zip(*dims, strict=True))
    return starts, stops, inside, holders
