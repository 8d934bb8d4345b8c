"""What is to be copied: of every tensor, which boxes of it lie where now, and where they shall lie.

A tensor is copied block by block: a block is what lies together in memory when the last dimensions are whole, so that
it is a contiguous range of every array whose pieces are rows, and each source byte is read once for all targets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.stored.arrays import Range, StoredArray
from planner.transfer.overlaps import minus, overlaps
from planner.transfer.pieces import Boxes, Pieces

__all__ = ["Held", "Move", "lacking", "without_repeats"]


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Pieces of a tensor in arrays: the holder of a piece is an index of `arrays`.

    `order`: where arrays have the dimensions in another order, dimension i of an array is `order[i]` of the tensor.
    """

    pieces: Pieces
    arrays: tuple[StoredArray, ...]
    dtype: np.dtype[Any]
    order: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.pieces.shape

    @property
    def nbytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def in_array(self, box: Sequence[Range]) -> list[Range]:
        """A box of dimensions in the tensor's order, in the array's."""
        return list(box) if self.order is None else [box[d] for d in self.order]


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A tensor and its pieces before and after.  Pieces of `source` have nothing in common; `filled`: what no source
    has becomes zero."""

    name: str
    source: Held
    target: Held
    filled: bool = False


def without_repeats(pieces: Pieces, preferred: Sequence[int] = ()) -> Pieces:
    """As few pieces as have all that these have, with nothing in common: of equal boxes that of the holder that comes
    first in `preferred`, then of the lowest number."""
    if not len(pieces):
        return pieces
    rank = {h: i for i, h in enumerate(preferred)}
    place = np.array([rank.get(int(h), len(rank) + int(h)) for h in pieces.holders], np.int64)
    ordered = pieces.chosen(np.argsort(place, kind="stable"))
    first, _ = ordered.distinct()
    found = ordered.chosen(np.sort(first))
    volumes = found.boxes.volumes
    if len(found) < 2 or int(volumes.sum()) <= math.prod(_extent(found.boxes)):
        met = overlaps(found.boxes, found.boxes)
        if len(met) == len(found):
            return found
    return _disjoint(found)


def _extent(boxes: Boxes) -> list[int]:
    return [int(n) for n in boxes.stops.max(axis=0) - boxes.starts.min(axis=0)]


def _disjoint(pieces: Pieces) -> Pieces:
    """The largest pieces whole, and of others what those before them lack."""
    order = np.argsort(-pieces.boxes.volumes, kind="stable")
    starts, stops, holders, inside = [], [], [], []
    taken = Boxes(pieces.boxes.starts[:0], pieces.boxes.stops[:0])
    for k in order:
        low, high = pieces.boxes.starts[k], pieces.boxes.stops[k]
        met = overlaps(taken, Boxes(low[None], high[None]))
        rest = minus((low, high), taken.chosen(met.left))
        starts.append(rest.starts)
        stops.append(rest.stops)
        holders.append(np.full(len(rest), pieces.holders[k]))
        inside.append(pieces.inside[k] + rest.starts - low)
        taken = Boxes(np.concatenate([taken.starts, rest.starts]), np.concatenate([taken.stops, rest.stops]))
    boxes = Boxes(np.concatenate(starts), np.concatenate(stops))
    return Pieces(pieces.shape, boxes, np.concatenate(holders), np.concatenate(inside))


def lacking(source: Pieces, target: Pieces) -> Boxes:
    """What targets need and no source has; sources have nothing in common."""
    first, _ = target.distinct()
    wanted = target.boxes.chosen(first)
    met = overlaps(source.boxes, wanted)
    had = np.zeros(len(wanted), np.int64)
    np.add.at(had, met.right, met.boxes.volumes)
    short = np.flatnonzero(had < wanted.volumes)
    rest = [
        minus((wanted.starts[k], wanted.stops[k]), source.boxes.chosen(met.left[met.right == k])) for k in short[:8]
    ]
    if not rest:
        return wanted.chosen(np.empty(0, np.int64))
    return Boxes(np.concatenate([r.starts for r in rest]), np.concatenate([r.stops for r in rest]))
