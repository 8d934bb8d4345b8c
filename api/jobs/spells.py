"""How long a child has run, pauses not counted; and stopping and resuming all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection
from pathlib import Path

__all__ = ["Spells", "cpu_of", "go", "memory_of", "stop"]


class Spells:
    """The times for which one child ran, from one pause to the next; seconds of the monotonic clock."""

    def __init__(self, begun: float) -> None:
        self._before = 0.0
        self._since: float | None = begun
        self.pauses = 0

    @property
    def paused(self) -> bool:
        return self._since is None

    def ran(self, now: float | None = None) -> float:
        """All in all."""
        return self._before + self.spell(now)

    def spell(self, now: float | None = None) -> float:
        """Since it began, or was resumed; 0 while it is paused."""
        return 0.0 if self._since is None else (time.monotonic() if now is None else now) - self._since

    def pause(self, now: float | None = None) -> None:
        self._before, self._since = self.ran(now), None
        self.pauses += 1

    def resume(self, now: float | None = None) -> None:
        self._since = time.monotonic() if now is None else now


def stop(group: int) -> None:
    """No process of the group runs until it is told to go on; it may still be killed."""
    _signal(group, signal.SIGSTOP)


def go(group: int) -> None:
    _signal(group, signal.SIGCONT)


def cpu_of(pid: int) -> float:
    """Processor time of a process and of those that it started and has waited for; 0 where it has gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def memory_of(groups: Collection[int]) -> int:
    """Bytes that the groups' processes hold in memory, those that they share counted by each."""
    page, total = os.sysconf("SC_PAGE_SIZE"), 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) in groups:
                total += int(fields[21]) * page
    return total


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
