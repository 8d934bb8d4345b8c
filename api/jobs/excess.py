"""What a child takes that no limit of the kernel counts: its files together, and its processes.

They are looked at when the worker renews its leases.  A child cannot leave its process group (a filter of system calls
keeps it there), so that the group is all that it has started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from planner.api.jobs.limits import Limits

__all__ = ["excess"]

_BLOCK = 512  # bytes, of `st_blocks`


def excess(group: int, folders: Iterable[Path], limits: Limits) -> tuple[str, str] | None:
    """The problem and what to say of it; None while all is within the limits.

    group: process group of the child.  folders: those that it writes to.
    """
    number = size = 0
    for found in _files(folders):
        number, size = number + 1, size + found.st_blocks * _BLOCK
        if size > limits.disk_bytes:
            return "child-disk", f"it wrote more than {limits.disk_bytes} bytes of files"
        if number > limits.files:
            return "child-disk", f"it made more than {limits.files} files"
    threads = _threads(group)
    if threads > limits.threads:
        return "child-processes", f"it began {threads} processes and threads, where {limits.threads} may be"
    return None


def _files(folders: Iterable[Path]) -> Iterator[os.stat_result]:
    """In folders and all below them; what goes away meanwhile is no matter."""
    waiting = list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    try:
                        yield entry.stat(follow_symlinks=False)
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(Path(entry.path))
                    except OSError:
                        continue
        except OSError:
            continue


def _threads(group: int) -> int:
    """Threads of all processes of the group."""
    found = 0
    for process in os.listdir("/proc"):
        if process.isdecimal():
            try:
                with open(f"/proc/{process}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group:
                found += int(fields[17])
    return found
