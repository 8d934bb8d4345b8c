"""Limits of memory, processor time, files and processes for one child process."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Limits", "impose"]

NICE = 10
OOM_SCORE = 1000  # the kernel ends children first where memory runs out, not the service
CPU_GRACE_S = 10  # of processor time, likewise: between SIGXCPU and SIGKILL


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes` beyond what the child maps when it begins; `cpu_s` of each process, `wall_s` of the whole;
    `grace_s` between the question for the best so far and the end; `file_bytes` of any file it writes; `result_bytes`
    of all that it hands in; `disk_bytes` and `files` of all that lies where it works; `threads` of all its processes.
    """

    memory_bytes: int = 8 << 30
    cpu_s: int = 3600
    wall_s: float = 3600.0
    grace_s: float = 10.0
    file_bytes: int = 1 << 30
    result_bytes: int = 512 << 20
    open_files: int = 256
    disk_bytes: int = 4 << 30
    files: int = 10_000
    threads: int = 512


def impose(limits: Limits) -> None:
    """Puts this process under the limits, for good."""
    os.nice(NICE)
    if os.getsid(0) == os.getpid():
        # Where the kernel schedules sessions as groups (sched_autogroup), niceness counts inside a session alone, and
        # that of the session is set here: otherwise a child has as much of the processors as the server.
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICE))
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _set(resource.RLIMIT_AS, mapped + limits.memory_bytes)
    _set(resource.RLIMIT_CPU, limits.cpu_s, CPU_GRACE_S)
    _set(resource.RLIMIT_FSIZE, limits.file_bytes)
    _set(resource.RLIMIT_NOFILE, limits.open_files)
    _set(resource.RLIMIT_CORE, 0)


def _set(what: int, value: int, grace: int = 0) -> None:
    _, most = resource.getrlimit(what)
    hard = value + grace if most == resource.RLIM_INFINITY else min(value + grace, most)
    resource.setrlimit(what, (min(value, hard), hard))
