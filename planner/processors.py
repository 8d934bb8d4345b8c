"""How many processors this process may use: those it is bound to, and no more than its control group grants time of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["processors"]


def processors(process: Path = Path("/proc/self")) -> int:
    """At least one; a quota of one and a half processors is one, which are busy throughout."""
    try:
        bound = len(os.sched_getaffinity(0))
    except AttributeError:  # another system than Linux
        bound = os.cpu_count() or 1
    return max(1, min([bound, *map(int, _quotas(process))]))


def _quotas(process: Path) -> Iterator[float]:
    """Processors that each control group around the process grants, of version 2 or 1."""
    try:
        groups = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
        mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for group in groups:
        if len(group) != 3:
            continue
        _, controllers, path = group
        for mount in mounts:
            about = mount[mount.index("-") + 1 :] if "-" in mount else []
            if len(about) < 3 or len(mount) < 5:
                continue
            if controllers == "" and about[0] == "cgroup2":
                yield from _granted(Path(mount[4]), path, _of_version_2)
            elif "cpu" in controllers.split(",") and about[0] == "cgroup" and "cpu" in about[2].split(","):
                yield from _granted(Path(mount[4]), path, _of_version_1)


def _granted(mount: Path, path: str, read: Callable[[Path], float | None]) -> Iterator[float]:
    """Of the group and those around it.  In a container the path may be that of the machine, which is not to be seen:
    then the mount itself is the group."""
    folder = mount / path.lstrip("/")
    for group in (folder, *folder.parents):
        if not group.is_relative_to(mount):
            return
        try:
            found = read(group)
        except (OSError, ValueError, ZeroDivisionError):
            continue
        if found is not None:
            yield found


def _of_version_2(group: Path) -> float | None:
    quota, period = (group / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _of_version_1(group: Path) -> float | None:
    quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    return None if quota <= 0 else quota / period
