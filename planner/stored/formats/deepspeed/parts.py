"""A tensor of which flattened ranges lie in one-dimensional arrays: what ZeRO makes of parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from planner.stored.arrays import StoredArray
from planner.stored.moves import Held
from planner.transfer.flat import flat_boxes
from planner.transfer.pieces import Boxes, Pieces, whole

__all__ = ["Flattened", "given", "of_one"]


@dataclass(frozen=True, slots=True)
class Flattened:
    """A tensor in parts behind each other: part i is `lengths[i]` elements.  Its geometry is the same for a parameter
    and what an optimizer keeps of it, and is worked out once."""

    shape: tuple[int, ...]
    lengths: tuple[int, ...]
    pieces: Pieces
    places: tuple[tuple[int, int, tuple[int, ...]], ...]  # of each piece: part, element in it, shape

    @classmethod
    def of(cls, shape: tuple[int, ...], lengths: Sequence[int]) -> Flattened:
        """ValueError where the parts do not make the tensor."""
        if sum(lengths) != math.prod(shape):
            raise ValueError(f"{sum(lengths):,} elements of a tensor {list(shape)}")
        starts, stops, places = [], [], []
        begin = 0
        for i, length in enumerate(lengths):
            boxes, inside = flat_boxes(shape, begin, begin + length), 0
            for size, volume in zip((boxes.stops - boxes.starts).tolist(), boxes.volumes.tolist(), strict=True):
                places.append((i, inside, tuple(size)))
                inside += volume
            starts.append(boxes.starts)
            stops.append(boxes.stops)
            begin += length
        if not places:
            return cls(shape, tuple(lengths), whole(shape), ())
        both = Boxes(np.concatenate(starts), np.concatenate(stops))
        inside_all = np.zeros_like(both.starts)
        pieces = Pieces(shape, both, np.arange(len(places), dtype=np.int64), inside_all)
        return cls(shape, tuple(lengths), pieces, tuple(places))

    def held(self, parts: Sequence[tuple[StoredArray, int]]) -> Held:
        """The tensor of which part i lies in a one-dimensional array, from some element of it on.  ValueError where an
        array is shorter, or of another type."""
        types = {array.dtype for array, _ in parts}
        if len(types) > 1:
            raise ValueError(f"parts of a tensor as {', '.join(sorted(map(str, types)))}")
        for (array, at), length in zip(parts, self.lengths, strict=True):
            if len(array.shape) != 1 or array.strides is not None or at + length > array.shape[0]:
                raise ValueError(
                    f"{array.file.name}: elements {at:,} to {at + length:,} of an array {list(array.shape)}"
                )
        dtype = types.pop() if types else np.dtype(np.float32)
        if not self.places:
            return Held(self.pieces, (StoredArray(Path("."), 0, dtype, self.shape, data=b""),), dtype)
        arrays = []
        for i, inside, size in self.places:
            array, at = parts[i]
            arrays.append(StoredArray(array.file, array.offset + (at + inside) * dtype.itemsize, dtype, size))
        return Held(self.pieces, tuple(arrays), dtype)


def of_one(array: StoredArray) -> Held:
    """A tensor that lies whole in an array."""
    return Held(whole(array.shape), (array,), array.dtype)


def given(value: Any) -> Held:
    """A number that lies in no file as a tensor."""
    number = np.asarray(value)
    return of_one(StoredArray(Path("."), 0, number.dtype, number.shape, data=number.tobytes()))
