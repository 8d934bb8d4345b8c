"""An array in a file, of which boxes are read and written.

What lies together is read and written by one call.  A box in many runs is read run by run, so that no byte more is
read than is needed; runs below a page are read through a map of the file, since the disk gives pages anyway.
"""

from __future__ import annotations

import math
import mmap
import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from planner.errors import InputError

__all__ = ["Array", "Files", "Range", "StoredArray", "bytes_of", "runs"]

Array = NDArray[Any]
Range = tuple[int, int]  # start, stop

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class StoredArray:
    """`shape` elements of a type from byte `offset` of a file on: row-major, unless `strides` (bytes) say otherwise.

    `extents`: of an array in several slices (first byte of the array, its byte in the file) each, in order.
    `data`: its bytes, of an array that no file has; those of one element stand for all.
    """

    file: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    extents: tuple[tuple[int, int], ...] = ()
    data: bytes | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """The byte behind the last one."""
        if self.strides is None or 0 in self.shape:
            return self.offset + self.nbytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return self.offset + last + self.dtype.itemsize

    def segments(self, first: int, length: int) -> Iterator[tuple[int, int]]:
        """(byte in the file, bytes) of so many bytes from the array's byte `first` on, row-major."""
        if not self.extents:
            yield self.offset + first, length
            return
        k = bisect_right(self.extents, first, key=lambda e: e[0]) - 1
        while length:
            begin, offset = self.extents[k]
            ends = self.extents[k + 1][0] if k + 1 < len(self.extents) else self.nbytes
            taken = min(length, ends - first)
            yield offset + first - begin, taken
            first, length, k = first + taken, length - taken, k + 1


def runs(shape: Sequence[int], box: Sequence[Range]) -> tuple[int, int]:
    """(dimensions in front that are walked one index at a time, elements of a run) of a box of a row-major array."""
    length, d = 1, len(shape)
    while d and length == math.prod(shape[d:]):
        d -= 1
        length *= box[d][1] - box[d][0]
    return d, length


def _offsets(shape: Sequence[int], box: Sequence[Range], walked: int) -> Iterator[int]:
    """Of each run, in elements from the array's beginning."""
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    base = sum(low * step for (low, _), step in zip(box[walked:], steps[walked:], strict=True))
    for index in np.ndindex(*(high - low for low, high in box[:walked])):
        yield base + sum((low + i) * s for i, (low, _), s in zip(index, box[:walked], steps[:walked], strict=True))


class Files:
    """Open files; boxes of arrays in them.  For one thread; close it, or use it in a `with`.

    `most`: files that are open at once.  `read_bytes`, `written_bytes`: of elements.
    """

    def __init__(self, *, write: bool = False, most: int = 64) -> None:
        self._write, self._most = write, most
        self._open: dict[Path, int] = {}
        self.read_bytes = 0
        self.written_bytes = 0

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def descriptor(self, file: Path) -> int:
        found = self._open.pop(file, None)
        if found is None:
            if len(self._open) >= self._most:
                os.close(self._open.pop(next(iter(self._open))))  # that which was used longest ago
            found = os.open(file, os.O_RDWR if self._write else os.O_RDONLY)
        self._open[file] = found
        return found

    def read(self, array: StoredArray, box: Sequence[Range]) -> Array:
        """The box's elements.  InputError where the file ends before them."""
        shape = tuple(high - low for low, high in box)
        if 0 in shape:
            return np.empty(shape, array.dtype)
        if array.data is not None:
            given: Array = np.frombuffer(array.data, array.dtype)
            if given.size == 1:
                return np.broadcast_to(given.reshape(()), shape)
            return given.reshape(array.shape)[tuple(slice(low, high) for low, high in box)]
        if array.strides is not None:
            return self._mapped(array, box)
        walked, elements = runs(array.shape, box)
        size, item = elements * array.dtype.itemsize, array.dtype.itemsize
        if not array.extents and math.prod(shape[:walked]) > 1 and size < _PAGE:
            return self._mapped(array, box)
        out = np.empty(math.prod(shape), array.dtype)
        view = bytes_of(out)
        handle, at = self.descriptor(array.file), 0
        for offset in _offsets(array.shape, box, walked):
            for begin, length in array.segments(offset * item, size):
                _fill(handle, view[at : at + length], begin, array.file)
                at += length
        self.read_bytes += out.nbytes
        return out.reshape(shape)

    def write(self, array: StoredArray, box: Sequence[Range], value: Array) -> None:
        """Puts elements into the box; `value` has its shape and type."""
        walked, elements = runs(array.shape, box)
        value = np.ascontiguousarray(value)
        view = bytes_of(value)
        size, handle, at = elements * array.dtype.itemsize, self.descriptor(array.file), 0
        for offset in _offsets(array.shape, box, walked) if value.size else ():
            for begin, taken in array.segments(offset * array.dtype.itemsize, size):
                _drain(handle, view[at : at + taken], begin)
                at += taken
        self.written_bytes += value.nbytes

    def _mapped(self, array: StoredArray, box: Sequence[Range]) -> Array:
        handle = self.descriptor(array.file)
        if os.fstat(handle).st_size < array.end:
            raise _short(array.file, array.end)
        steps = array.strides or tuple(math.prod(array.shape[d + 1 :]) * array.dtype.itemsize
                                       for d in range(len(array.shape)))  # fmt: skip
        first = array.offset + sum(low * s for (low, _), s in zip(box, steps, strict=True))
        last = array.offset + sum((high - 1) * s for (_, high), s in zip(box, steps, strict=True))
        begin = first - first % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(handle, last + array.dtype.itemsize - begin, offset=begin, access=mmap.ACCESS_READ) as seen:
            shape = tuple(high - low for low, high in box)
            view: Array | None = np.ndarray(shape, array.dtype, seen, offset=first - begin, strides=steps)
            assert view is not None
            out = view.copy()
            view = None  # the map closes once nothing looks at it
        self.read_bytes += out.nbytes
        return out


def bytes_of(value: Array) -> memoryview:
    """The bytes of a contiguous array, which it shares."""
    flat: Any = value.reshape(-1).view(np.uint8)
    return memoryview(flat)


def _fill(handle: int, view: memoryview, offset: int, file: Path) -> None:
    while view:
        got = os.preadv(handle, [view], offset)
        if not got:
            raise _short(file, offset + len(view))
        view, offset = view[got:], offset + got


def _drain(handle: int, view: memoryview, offset: int) -> None:
    while view:
        put = os.pwrite(handle, view, offset)
        view, offset = view[put:], offset + put


def _short(file: Path, needed: int) -> InputError:
    found = file.stat().st_size
    return InputError(f"{file}: expected at least {needed:,} bytes, found {found:,}: it was cut short; copy it again")
