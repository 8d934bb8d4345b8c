"""`.npz`: a zip file of `.npy` arrays, stored as numpy.savez stores them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from tokenize import TokenError  # numpy reads headers as Python does
from typing import Final

import numpy as np
from numpy.lib import format as npy

from planner.errors import InputError
from planner.stored.arrays import StoredArray
from planner.stored.formats.archive import Member, members, zipped
from planner.stored.formats.crc import patches
from planner.stored.formats.layout import Arranged, Content, Entry

__all__ = ["Npz"]

_HEAD: Final = 1 << 16  # bytes in which a header ends
_SUFFIX: Final = ".npy"


class Npz:
    name = "npz"
    suffixes: tuple[str, ...] = (".npz",)

    def read(self, file: Path) -> Content:
        try:
            found = {}
            with file.open("rb") as opened:
                for member, (begin, size) in members(file).items():
                    if not member.endswith(_SUFFIX):
                        raise ValueError(f"a member {member!r:.80}, which is no array")
                    opened.seek(begin)
                    found[member.removesuffix(_SUFFIX)] = _array(file, opened.read(min(size, _HEAD)), begin, size)
            return Content(found)
        except OSError as e:
            raise InputError(f"{file}: cannot be read: {e.strerror}") from None
        except (ValueError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as e:
            raise InputError(f"{file}: expected arrays that numpy.savez wrote, found {e}; save them anew") from None

    def arrange(self, entries: Sequence[Entry], metadata: Mapping[str, str]) -> Arranged:
        made = zipped([Member(e.name + _SUFFIX, _head(e), e.nbytes) for e in entries])
        offsets = {e.name: made.begins[e.name + _SUFFIX] for e in entries}
        return Arranged(made.size, made.fixed, offsets, summed=True)

    def finished(self, entries: Sequence[Entry], sums: Mapping[str, int]) -> list[tuple[int, bytes]]:
        made = zipped([Member(e.name + _SUFFIX, _head(e), e.nbytes) for e in entries])
        out: list[tuple[int, bytes]] = []
        for e in entries:
            out += patches(made.sums[e.name + _SUFFIX], _head(e), sums[e.name], e.nbytes)
        return out


def _head(e: Entry) -> bytes:
    out = io.BytesIO()
    descr = npy.dtype_to_descr(e.dtype)
    if e.dtype.kind == "V":
        raise ValueError(
            f"{e.name}: elements of {e.dtype}, which .npz cannot hold; give another format, or a weight --dtype fp32"
        )
    npy.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": e.shape})
    return out.getvalue()


def _array(file: Path, head: bytes, begin: int, size: int) -> StoredArray:
    stream = io.BytesIO(head)
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array of version {version}")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject or dtype.kind not in "biufc" or not dtype.isnative:
        raise ValueError(f"an array of {dtype}")
    at = stream.tell()
    found = StoredArray(file, begin + at, dtype, tuple(int(n) for n in shape))
    if any(n < 0 for n in found.shape) or found.nbytes != size - at:
        raise ValueError(f"an array {list(shape)} of {dtype} in {size - at} bytes")
    if fortran and len(shape) > 1:
        steps = [dtype.itemsize * int(np.prod(found.shape[:d], dtype=np.int64)) for d in range(len(shape))]
        return StoredArray(file, begin + at, dtype, found.shape, tuple(steps))
    return found
