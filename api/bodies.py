"""What is sent: bytes that any number of readers take at their own pace.

A large body stays in its file.  Who is slow to read it holds a piece of it, and not the whole.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Final, Protocol

__all__ = ["IN_MEMORY", "PIECE", "Content", "Filed", "Held", "filed", "packed", "pieces", "whole"]

IN_MEMORY: Final = 64 * 2**10  # bytes that are not worth a file
PIECE: Final = 32 * 2**10  # bytes that a reader is handed at a time


class Content(Protocol):
    @property
    def size(self) -> int: ...

    def piece(self, at: int) -> bytes:
        """Up to PIECE bytes from there on."""


class Held:
    """In memory."""

    __slots__ = ("_bytes",)

    def __init__(self, content: bytes) -> None:
        self._bytes = content

    @property
    def size(self) -> int:
        return len(self._bytes)

    def piece(self, at: int) -> bytes:
        return self._bytes[at : at + PIECE]


class Filed:
    """In a file that may have lost its name: it goes with the last who reads it."""

    __slots__ = ("_handle", "size")

    def __init__(self, file: IO[bytes]) -> None:
        """The file may be closed after this; what was written to it must have been flushed."""
        self._handle = os.dup(file.fileno())
        self.size = os.fstat(self._handle).st_size

    def piece(self, at: int) -> bytes:
        # Whoever opened or made the file has just read or written all of it: it lies in the machine's memory, so that
        # this costs less than handing it to a thread.
        return os.pread(self._handle, PIECE, at)

    def __del__(self) -> None:
        os.close(self._handle)


def packed(content: Content, folder: Path) -> Content:
    """Compressed by gzip, in memory where it was small and else in a file without a name in the folder.  OSError."""
    if content.size <= IN_MEMORY:
        return Held(gzip.compress(whole(content), 5, mtime=0))
    with tempfile.TemporaryFile(dir=folder) as file:
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=5, mtime=0) as out:
            for piece in _all(content):
                out.write(piece)
        file.flush()
        return Filed(file)


def filed(content: bytes, folder: Path) -> Content:
    """In a file without a name in the folder; in memory where that has no room."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(content)
            return Filed(file)
    except OSError:
        return Held(content)


def whole(content: Content) -> bytes:
    return b"".join(_all(content))


async def pieces(content: Content) -> AsyncIterator[bytes]:
    """From the first to the last byte."""
    for at in range(0, content.size, PIECE):
        yield content.piece(at)


def _all(content: Content) -> Iterator[bytes]:
    for at in range(0, content.size, PIECE):
        yield content.piece(at)
