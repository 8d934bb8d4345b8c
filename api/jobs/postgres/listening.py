"""Which tasks were written to, as the server says it: a connection that listens, in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Final

import psycopg
from psycopg import sql

__all__ = ["Listener"]

HEARD: Final = 4096  # notes kept for `changes`; who is further behind looks at everything
POLL_S: Final = 1.0  # between two looks at everything, in case that a note was lost
AGAIN_S: Final = 0.5  # before a connection that broke is made again


class Listener:
    """`version()` grows with every note.  While nothing can be heard it grows once in `POLL_S`, as it does between
    notes: who waits then looks, so that a connection that broke costs time and nothing else."""

    def __init__(self, conninfo: str, channel: str) -> None:
        self._conninfo, self._channel = conninfo, channel
        self._lock = threading.Lock()
        self._heard: deque[tuple[int, int | None]] = deque(maxlen=HEARD)  # version and task; None: any
        self._version = 0
        self._polled = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.listening = threading.Event()

    def version(self) -> int:
        with self._lock:
            if self._thread is None:  # begun by who asks first: not every program waits
                self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
                self._thread.start()
            if time.monotonic() > self._polled + POLL_S:
                self._note(None)
            return self._version

    def changes(self, since: int) -> frozenset[int] | None:
        with self._lock:
            oldest = self._heard[0][0] if self._heard else self._version + 1
            if since + 1 < oldest:
                return None
            found = [task for version, task in self._heard if version > since]
        return None if None in found else frozenset(task for task in found if task is not None)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(2 * POLL_S)

    def _note(self, task: int | None) -> None:
        self._version += 1
        self._heard.append((self._version, task))
        if task is None:
            self._polled = time.monotonic()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with psycopg.connect(self._conninfo, autocommit=True) as db:
                    db.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    with self._lock:
                        self._note(None)  # whatever was said before
                    self.listening.set()
                    while not self._stop.is_set():
                        for note in db.notifies(timeout=POLL_S / 2):
                            with self._lock:
                                self._note(int(note.payload) if note.payload.isdigit() else None)
            except psycopg.Error:
                self.listening.clear()
                self._stop.wait(AGAIN_S)
