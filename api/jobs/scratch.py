"""Folders that workers' children work in, which also tell who lives.

A worker holds a lock on its folder.  The kernel lets go of it however the worker ends, so that another worker of this
machine knows at once, and need not wait for leases to run out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from planner.api.jobs.removal import remove

__all__ = ["bury", "own_folder"]


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Makes and holds the folder, and removes it behind.  OSError."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _held(folder.parent):  # nobody finds it made and not yet held
        folder.mkdir()
        handle = _open(folder)
        fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        remove(folder)
        os.close(handle)


def bury(base: Path, dead: Callable[[str], None]) -> None:
    """Tells of every folder that nobody holds any more, by name, and removes it.

    Only the look whether somebody holds a folder keeps out others who make theirs: removing may take long."""
    for folder in list(base.iterdir()):
        with contextlib.ExitStack() as own:
            try:
                with _held(base):
                    own.enter_context(_held(folder, fcntl.LOCK_NB))
            except (BlockingIOError, FileNotFoundError):
                continue
            dead(folder.name)
            remove(folder)


@contextlib.contextmanager
def _held(folder: Path, how: int = 0) -> Iterator[None]:
    handle = _open(folder)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | how)
        yield
    finally:
        os.close(handle)


def _open(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
