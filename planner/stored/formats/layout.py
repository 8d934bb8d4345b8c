"""What formats have in common: the arrays that a file has, and a file before its arrays are written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from planner.stored.arrays import StoredArray

__all__ = ["DCP_METADATA", "MOST_DIMENSIONS", "Arranged", "Content", "Entry", "FileFormat", "slice_name"]


DCP_METADATA: Final = ".metadata"  # by which a folder is one of torch.distributed.checkpoint
MOST_DIMENSIONS: Final = 32  # of an array: as numpy had them


@dataclass(frozen=True, slots=True)
class Content:
    """The arrays of a file by name, in its order; `metadata` of safetensors; `values`: what else torch's files hold;
    `paths`: where each name lies among their nested dictionaries."""

    arrays: Mapping[str, StoredArray]
    metadata: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    paths: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """An array that a file will have."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Arranged:
    """A file of `size` bytes: `fixed` are (offset, bytes) of all that is no array; `offsets`: where each array begins.
    `summed`: whether the format holds a CRC-32 of every array, which `finished` puts in.  `extents`: of arrays in
    several slices, as StoredArray has them."""

    size: int
    fixed: tuple[tuple[int, bytes], ...]
    offsets: Mapping[str, int]
    summed: bool = False
    extents: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def slices(self, e: Entry) -> list[tuple[str, int, int]]:
        """(name that `finished` knows it by, offset, bytes) of each slice of an array: the array's own name where there
        is one slice, and otherwise `slice_name`."""
        slices = self.extents.get(e.name, ())
        if not slices:
            return [(e.name, self.offsets[e.name], e.nbytes)]
        ends = [*(begin for begin, _ in slices[1:]), e.nbytes]
        return [(slice_name(e.name, k), offset, end - begin)
                for k, ((begin, offset), end) in enumerate(zip(slices, ends, strict=True))]  # fmt: skip


def slice_name(name: str, number: int) -> str:
    """Of a slice of an array whose name this is."""
    return f"{name}\0{number}"


class FileFormat(Protocol):
    """A format of single files.  `read` raises InputError for a file that is none of it, `arrange` ValueError for an
    array that it cannot express."""

    @property
    def name(self) -> str: ...

    @property
    def suffixes(self) -> tuple[str, ...]: ...

    def read(self, file: Path) -> Content: ...

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged: ...

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        """(offset, bytes) that are known once all arrays are written; `sums`: the CRC-32 of each slice of each."""
        ...
