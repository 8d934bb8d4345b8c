"""Signs of life of a worker, over a pipe to the process that started it, or by the time of a file.

There are two kinds.  Those of the worker's own rounds stop with these, whatever has stopped them, also where a round
waits for a store of another host, which may take a minute and be in order.  Those of a thread beside them say that the
process lives: they stop at once where it is stopped, or where native code holds the interpreter for ever.  Neither kind
needs the store, which may be full or locked while the worker is well.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Final

__all__ = ["LIVES_S", "PATIENCE_S", "REMOTE_PATIENCE_S", "Listener", "Pulse"]

EVERY_S: Final = 0.5
LIVES_S: Final = 10.0  # between two signs that the process lives: it waits for nothing
PATIENCE_S: Final = 12.0  # longer than a write may wait for the store
# Likewise where the store is another host's: a connection that hears nothing is given up after 15 s and another may be
# tried, a statement runs for 30 s at most.
REMOTE_PATIENCE_S: Final = 60.0
START_S: Final = 300.0  # until the first sign: a large store may have to be put in order
_ROUND: Final = b"."
_LIVES: Final = b","
ABSENT_S: Final = 3.0  # between two looks of who listens: it was stopped itself, and the worker perhaps with it


class Pulse:
    """The worker's end; `handle` None: nobody listens.  `file`: is touched, for whoever looks when that was."""

    def __init__(self, handle: int | None, file: Path | None = None) -> None:
        self._handle = handle
        self._file = file
        self._next = 0.0
        self._beside: threading.Thread | None = None
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
            self._write(_ROUND)
            if self._beside is None:
                self._beside = threading.Thread(target=self._live, name="signs of life", daemon=True)
                self._beside.start()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk is no reason to end a worker
                self._file.touch()

    def _live(self) -> None:
        while True:
            time.sleep(EVERY_S)
            self._write(_LIVES)

    def _write(self, sign: bytes) -> None:
        assert self._handle is not None
        with contextlib.suppress(OSError):  # full, or nobody there any more
            os.write(self._handle, sign)


class Listener:
    """The other end, of one worker."""

    def __init__(self, patience_s: float = PATIENCE_S, start_s: float = START_S, lives_s: float = LIVES_S) -> None:
        self._patience_s, self._start_s, self._lives_s = patience_s, start_s, lives_s
        self._read, self.handle = os.pipe()
        os.set_blocking(self._read, False)
        self._heard = self._heard_beside = False
        self._round = self._lived = self._looked = time.monotonic()

    def given(self) -> None:
        """The worker has its end: this process needs it no more."""
        os.close(self.handle)

    def silent(self) -> float:
        """For how many seconds there has been no sign, where that is too long; else 0."""
        now = time.monotonic()
        try:
            signs = os.read(self._read, 1 << 16)
        except BlockingIOError:
            signs = b""
        if signs:
            self._lived = now
            self._heard |= _ROUND in signs
            self._heard_beside |= _LIVES in signs
        if _ROUND in signs:
            self._round = now
        if now > self._looked + ABSENT_S:
            self._round = self._lived = now
        self._looked = now
        if self._heard_beside and now > self._lived + self._lives_s:
            return now - self._lived
        too_long = now > self._round + (self._patience_s if self._heard else self._start_s)
        return now - self._round if too_long else 0.0

    def close(self) -> None:
        os.close(self._read)
