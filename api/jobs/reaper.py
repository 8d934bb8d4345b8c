"""Buries processes that this one did not start: as the first of a container it inherits whatever loses its parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from planner.api.jobs.sandbox.kernel import MACHINE, prctl

__all__ = ["Reaper", "inherits"]

EVERY_S: Final = 5.0
_PR_GET_CHILD_SUBREAPER: Final = 37


def inherits() -> bool:
    """Whether orphans become children of this process."""
    if os.getpid() == 1:
        return True
    if not MACHINE:
        return False
    found = ctypes.c_int(0)
    with contextlib.suppress(OSError):
        prctl(_PR_GET_CHILD_SUBREAPER, ctypes.addressof(found))
    return bool(found.value)


class Reaper:
    """A thread while the block lasts, where orphans come here at all.

    `own`: processes that somebody here waits for.  One that has just been started may not be among them yet, so that
    only what has been dead at two looks, one after the other, is buried.
    """

    def __init__(self, own: Callable[[], set[int]], every_s: float = EVERY_S) -> None:
        self._own = own
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="reaper", daemon=True) if inherits() else None

    def __enter__(self) -> Reaper:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(self._every_s)

    def _look(self) -> None:
        before: set[int] = set()
        while not self._stop.wait(self._every_s):
            dead = set(_dead()) - self._own()
            for pid in dead & before:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            before = dead


def _dead() -> Iterator[int]:
    """Children that have ended and that nobody has asked after."""
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in listed.read_text().split():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                        yield int(pid)
