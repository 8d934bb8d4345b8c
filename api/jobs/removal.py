"""Removes a folder whatever is in it: a child may have nested folders deeper than any path is long."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from pathlib import Path
from typing import Final

__all__ = ["remove", "remove_soon"]

AT_ONCE_S: Final = 0.5


def remove_soon(folder: Path) -> None:
    """As `remove`; where that takes long, a thread goes on with it."""
    if not remove(folder, AT_ONCE_S):
        threading.Thread(target=remove, args=(folder,), name="removal", daemon=True).start()


def remove(folder: Path, seconds: float = float("inf")) -> bool:
    """False when the seconds are over.  What cannot be removed stays, without an error.

    Folders inside are moved up beside each other, so that neither paths nor this program's stack grow with their depth.
    """
    end = time.monotonic() + seconds
    mark = f".{secrets.token_hex(4)}-"
    waiting, looked_at = [str(folder)], []
    while waiting:
        current = waiting.pop()
        looked_at.append(current)
        for inner in _emptied(current, end):
            moved = os.path.join(folder, f"{mark}{len(looked_at) + len(waiting)}")
            try:
                os.rename(inner, moved)
            except OSError:
                moved = inner
            waiting.append(moved)
        if time.monotonic() > end:
            return False
    for path in reversed(looked_at):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    return True


def _emptied(folder: str, end: float) -> list[str]:
    """Removes the files of a folder, as far as time allows; the folders in it."""
    inner: list[str] = []
    with contextlib.suppress(OSError):
        os.chmod(folder, 0o700)  # it may have been made one that nobody can look into
        with os.scandir(folder) as entries:
            for entry in entries:
                if time.monotonic() > end:
                    break
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        inner.append(entry.path)
                    else:
                        os.unlink(entry.path)
    return inner
