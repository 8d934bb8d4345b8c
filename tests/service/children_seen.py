"""What the children of a running service use, as the kernel counts it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Seen", "Watching", "descendants"]

TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Seen:
    """Of the child of one task and all that it started: the most bytes resident together, processor seconds."""

    resident: int = 0
    cpu: dict[int, float] = field(default_factory=dict)
    oom_score: int = 0


def descendants(pid: int) -> list[int]:
    """Processes below this one."""
    out: list[int] = []
    pending = [pid]
    while pending:
        at = pending.pop()
        try:
            for task in os.listdir(f"/proc/{at}/task"):
                pending += map(int, Path(f"/proc/{at}/task/{task}/children").read_text().split())
        except OSError:
            continue
        out.append(at)
    return [p for p in out if p != pid]


class Watching(threading.Thread):
    """Looks at the descendants of a process twenty times a second; `tasks` has what was seen, by number."""

    def __init__(self, pid: int, every_s: float = 0.05) -> None:
        super().__init__(daemon=True)
        self.pid, self.every_s = pid, every_s
        self.tasks: dict[int, Seen] = {}
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(self.every_s):
            self._look()

    def stop(self) -> None:
        self.ended.set()
        self.join()

    def _look(self) -> None:
        resident: dict[int, int] = {}
        for pid in descendants(self.pid):
            try:
                place = Path(os.readlink(f"/proc/{pid}/cwd"))
                if place.name.removesuffix(" (deleted)") != "work" or "scratch" not in place.parts:
                    continue
                task = int(place.parent.name.partition("-")[0])
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except (OSError, ValueError, IndexError):
                continue
            seen = self.tasks.setdefault(task, Seen())
            resident[task] = resident.get(task, 0) + pages * PAGE
            seen.cpu[pid] = (int(told[11]) + int(told[12])) / TICK
        for task, size in resident.items():
            self.tasks[task].resident = max(self.tasks[task].resident, size)


def gone(pid: int, seconds: float = 10.0) -> list[int]:
    """Descendants that are still there after a while, those that work for a task alone."""
    end = time.monotonic() + seconds
    while True:
        left = []
        for p in descendants(pid):
            try:
                if Path(os.readlink(f"/proc/{p}/cwd")).name.startswith("work"):
                    left.append(p)
            except OSError:
                continue
        if not left or time.monotonic() > end:
            return left
        time.sleep(0.1)
