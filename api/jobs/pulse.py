"""Signs of life of a worker, over a pipe to the process that started it, or by the time of a file.

They come from the worker's own rounds, so that they stop with those, whatever has stopped them; and they need no store,
which may be full or locked while the worker is well.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["PATIENCE_S", "REMOTE_PATIENCE_S", "Listener", "Pulse"]

EVERY_S: Final = 0.5
PATIENCE_S: Final = 12.0  # longer than a write may wait for the store
# Likewise where the store is another host's: a connection that hears nothing is given up after 15 s and another may be
# tried, a statement runs for 30 s at most.
REMOTE_PATIENCE_S: Final = 60.0
START_S: Final = 300.0  # until the first sign: a large store may have to be put in order
ABSENT_S: Final = 3.0  # between two looks of who listens: it was stopped itself, and the worker perhaps with it


class Pulse:
    """The worker's end; `handle` None: nobody listens.  `file`: is touched, for whoever looks when that was."""

    def __init__(self, handle: int | None, file: Path | None = None) -> None:
        self._handle = handle
        self._file = file
        self._next = 0.0
        if handle is not None:
            os.set_inheritable(handle, False)
            os.set_blocking(handle, False)

    def beat(self) -> None:
        """Costs nothing where the last one was a moment ago."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        if self._handle is not None:
            with contextlib.suppress(OSError):  # full, or nobody there any more
                os.write(self._handle, b".")
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk is no reason to end a worker
                self._file.touch()


class Listener:
    """The other end, of one worker."""

    def __init__(self, patience_s: float = PATIENCE_S, start_s: float = START_S) -> None:
        self._patience_s, self._start_s = patience_s, start_s
        self._read, self.handle = os.pipe()
        os.set_blocking(self._read, False)
        self._heard = False
        self._since = self._looked = time.monotonic()

    def given(self) -> None:
        """The worker has its end: this process needs it no more."""
        os.close(self.handle)

    def silent(self) -> bool:
        """Whether there has been no sign for too long."""
        now = time.monotonic()
        try:
            if os.read(self._read, 1 << 16):
                self._heard, self._since = True, now
        except BlockingIOError:
            pass
        if now > self._looked + ABSENT_S:
            self._since = now
        self._looked = now
        return now > self._since + (self._patience_s if self._heard else self._start_s)

    def close(self) -> None:
        os.close(self._read)
