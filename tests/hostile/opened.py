"""Whether anybody opens a file: the kernel tells (inotify), whichever process and library it is."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from pathlib import Path

__all__ = ["Opened"]

ACCESS, OPEN = 0x1, 0x20
NONBLOCK = os.O_NONBLOCK


class Opened:
    """`seen` has the events of the block: `open` and `read`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: list[str] = []
        self._handle = -1

    def __enter__(self) -> Opened:
        library = ctypes.CDLL(None, use_errno=True)
        self._handle = library.inotify_init1(NONBLOCK)
        if self._handle < 0 or library.inotify_add_watch(self._handle, os.fsencode(self.path), ACCESS | OPEN) < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        return self

    def __exit__(self, *_: object) -> None:
        self.seen += self._events()

    def works(self) -> bool:
        """Opens the file, which must be noticed."""
        self.path.read_bytes()
        noticed = bool(self._events())
        os.close(self._handle)
        return noticed

    def _events(self) -> list[str]:
        out = []
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._handle, 1 << 16)
            while data:
                _, mask, _, size = struct.unpack_from("iIII", data)
                out.append("open" if mask & OPEN else "read")
                data = data[16 + size :]
        return out
