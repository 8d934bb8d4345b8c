"""CRC-32 of bytes that come in any order: that of two texts behind each other, of those of each.

Appending n zero bytes is a linear map over GF(2); its matrix is the n-th power of that of one bit (Adler's
crc32_combine in zlib).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

__all__ = ["combined", "crc32", "patches"]

_POLYNOMIAL: Final = 0xEDB88320
Matrix = tuple[int, ...]


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    return zlib.crc32(data, before)


def combined(first: int, second: int, length: int) -> int:
    """The CRC-32 of A followed by B, of those of A and B and the bytes of B."""
    power = 3  # of the matrix for one bit: eight bits are a byte
    while length:
        if length & 1:
            first = _times(_squared(power), first)
        length >>= 1
        power += 1
    return first ^ second


def patches(places: Iterable[int], head: bytes, rest: int, length: int) -> list[tuple[int, bytes]]:
    """(offset, bytes) of the CRC-32 of a head and a rest of `length` bytes behind it, whose CRC-32 is `rest`."""
    whole = combined(crc32(head), rest, length)
    return [(at, struct.pack("<I", whole)) for at in places]


def _times(matrix: Matrix, vector: int) -> int:
    out = 0
    for column in matrix:
        if not vector:
            break
        if vector & 1:
            out ^= column
        vector >>= 1
    return out


@lru_cache(maxsize=128)
def _squared(times: int) -> Matrix:
    """The matrix of a zero bit, squared so often."""
    if not times:
        return (_POLYNOMIAL, *(1 << i for i in range(31)))
    half = _squared(times - 1)
    return tuple(_times(half, column) for column in half)
