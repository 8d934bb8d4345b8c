"""Connections of this process to others that are broken off from beside the thread that waits for them.

Gloo gives up a collective when a connection that it needs is closed.  The neighbours of a process that has ended see
that at once; those that wait for the neighbours would wait until the time of a collective is over.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

__all__ = ["Breaker"]

_EVERY_S = 0.05  # what the process connects meanwhile is broken off, too


class Breaker:
    """Listens on a pipe, and on a word from there breaks off every connection for as long as the process is `busy`;
    then it gives the word back, and nothing is broken off any more."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._idle = threading.Event()
        self._idle.set()
        threading.Thread(target=self._listen, daemon=True).start()

    @contextmanager
    def busy(self) -> Iterator[None]:
        self._idle.clear()
        try:
            yield
        finally:
            self._idle.set()

    def _listen(self) -> None:
        try:
            while True:
                word = self._pipe.recv()
                _break_off()
                while not self._idle.is_set():
                    time.sleep(_EVERY_S)
                    _break_off()
                self._pipe.send(word)
        except (EOFError, OSError):  # the other end has gone, and the process ends
            return


def _break_off() -> None:
    """Shuts down every connection by TCP, which are those of process groups and of their store: pipes are none."""
    for number in map(int, os.listdir("/dev/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            found = socket.socket(fileno=os.dup(number))
        except OSError:  # gone meanwhile
            continue
        with found:
            try:
                connected = not found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                if found.family in (socket.AF_INET, socket.AF_INET6) and connected:
                    found.shutdown(socket.SHUT_RDWR)
            except OSError:  # not connected yet, or not any more
                continue
