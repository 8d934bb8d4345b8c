"""Zip files whose members are stored and not compressed: what `.npz` and torch's files are.

The layout is known before a byte of a member is, so that members are written in any order; their CRC-32 are put in at
the end.  Source: PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12, 4.3.14 to 4.3.16, 4.5.3.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zipfile import ZIP_STORED, BadZipFile, ZipFile

__all__ = ["Member", "Zipped", "members", "zipped"]

_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_END: Final = struct.Struct("<4s4H2IH")
_FULL: Final = 0xFFFFFFFF
_DATE: Final = 0x21  # the first of January 1980: files of the same content are the same bytes
_CRC_IN_LOCAL, _CRC_IN_CENTRAL = 14, 16


@dataclass(frozen=True, slots=True)
class Member:
    """A member to be: its `head` is known, and `rest` bytes follow that are written later."""

    name: str
    head: bytes
    rest: int = 0

    @property
    def size(self) -> int:
        return len(self.head) + self.rest


@dataclass(frozen=True, slots=True)
class Zipped:
    """(offset, bytes) of all that is known, where each member's `rest` begins, and where CRC-32s stand."""

    size: int
    fixed: tuple[tuple[int, bytes], ...]
    begins: Mapping[str, int]
    sums: Mapping[str, tuple[int, ...]]


def zipped(given: Sequence[Member], *, aligned: int = 1) -> Zipped:
    """The file of these members, whose content begins at multiples of `aligned` bytes."""
    at = 0
    fixed: list[tuple[int, bytes]] = []
    begins: dict[str, int] = {}
    sums: dict[str, tuple[int, ...]] = {}
    central: list[tuple[str, int, bytes]] = []
    for m in given:
        name = m.name.encode()
        large = m.size >= _FULL
        extra = struct.pack("<2H2Q", 1, 16, m.size, m.size) if large else b""
        pad = -(at + _LOCAL.size + len(name) + len(extra)) % aligned
        if pad:
            pad = pad if pad >= 4 else pad + aligned
            extra += struct.pack("<2H", 0x4246, pad - 4) + bytes(pad - 4)  # "FB", as torch pads
        size = _FULL if large else m.size
        version = 45 if large or at >= _FULL else 20
        crc = 0 if m.rest else zlib.crc32(m.head)
        head = (
            _LOCAL.pack(b"PK\3\4", version, 0x800, 0, 0, _DATE, crc, size, size, len(name), len(extra)) + name + extra
        )
        fixed.append((at, head + m.head))
        begins[m.name] = at + len(head) + len(m.head)
        far = [n for n in (m.size, m.size) if large] + ([at] if at >= _FULL else [])
        more = struct.pack(f"<2H{len(far)}Q", 1, 8 * len(far), *far) if far else b""
        record = _CENTRAL.pack(
            b"PK\1\2", 45, version, 0x800, 0, 0, _DATE, crc, size, size, len(name), len(more), 0, 0, 0, 0,
            min(at, _FULL),
        )  # fmt: skip
        central.append((m.name, at, record + name + more))
        at = begins[m.name] + m.rest
    directory = at
    for member, local, record in central:
        sums[member] = (local + _CRC_IN_LOCAL, at + _CRC_IN_CENTRAL)
        fixed.append((at, record))
        at += len(record)
    length = at - directory
    tail = b""
    if directory >= _FULL or len(given) >= 0xFFFF:
        count = len(given)
        tail = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, length, directory)
        tail += _LOCATOR.pack(b"PK\6\7", 0, at, 1)
    count = min(len(given), 0xFFFF)
    tail += _END.pack(b"PK\5\6", 0, 0, count, count, min(length, _FULL), min(directory, _FULL), 0)
    fixed.append((at, tail))
    return Zipped(at + len(tail), tuple(fixed), begins, sums)


def members(file: Path, begin: int = 0, length: int | None = None) -> dict[str, tuple[int, int]]:
    """Member → (offset in the file, bytes), of a zip file or of one that lies within a file.

    ValueError where it is none, or a member is compressed or encrypted.
    """
    with file.open("rb") as opened:
        size = file.stat().st_size
        within = _Part(opened, begin, size - begin if length is None else length)
        if begin + within.length > size:
            raise ValueError(f"bytes {begin} to {begin + within.length} of {size}")
        try:
            found = ZipFile(within)
        except (BadZipFile, NotImplementedError, struct.error, UnicodeDecodeError) as e:
            raise ValueError(f"no zip file ({e})") from None
        out = {}
        for info in found.infolist():
            if info.compress_type != ZIP_STORED or info.flag_bits & 1:
                raise ValueError(f"a compressed member {info.filename!r:.80}")
            within.seek(info.header_offset)
            head = within.read(_LOCAL.size)
            if len(head) < _LOCAL.size or head[:4] != b"PK\3\4":
                raise ValueError(f"no member {info.filename!r:.80} at byte {info.header_offset}")
            *_, name, extra = _LOCAL.unpack(head)
            at = info.header_offset + _LOCAL.size + name + extra
            if info.file_size != info.compress_size or at + info.file_size > within.length:
                raise ValueError(f"a member {info.filename!r:.80} of {info.file_size} bytes at byte {at}")
            out[info.filename] = (begin + at, info.file_size)
        return out


class _Part:
    """A part of a file as a file of its own, for reading."""

    def __init__(self, opened: BinaryIO, begin: int, length: int) -> None:
        self._opened, self._begin, self.length, self._at = opened, begin, length, 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, to: int, whence: int = 0) -> int:
        self._at = to + (self._at if whence == 1 else self.length if whence == 2 else 0)
        if self._at < 0:
            raise OSError(errno.EINVAL, "before the beginning of the file")  # as files say it, which zipfile awaits
        return self._at

    def read(self, count: int = -1) -> bytes:
        left = max(0, self.length - self._at)
        count = left if count < 0 else min(count, left)
        self._opened.seek(self._begin + self._at)
        data: bytes = self._opened.read(count)
        self._at += len(data)
        return data
