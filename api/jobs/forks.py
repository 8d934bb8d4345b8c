"""Children from a fork server that has imported everything: one begins in tens of milliseconds.

The fork server has a single thread and dies with the worker that started it, and children die with the fork server.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from planner import version
from planner.api.jobs import preload
from planner.api.jobs.child import MESSAGE_BYTES, main
from planner.api.jobs.removal import remove_soon
from planner.api.jobs.work import JobInput

__all__ = ["Child", "Entry", "ForkServer", "begin", "started"]

Entry = Callable[[Connection, JobInput], None]

MESSAGES = 1000  # taken in at once
MESSAGES_BYTES = 4 << 20  # likewise
SINGLE = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# Variables that a child may see: of Python, libraries, places and languages; keys and passwords have other names.
_PASSED = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|VIRTUAL_ENV|PYTHON.*|LD_.*|XDG_CACHE_HOME|PLANNER_(NATIVE|CACHE_.*)"
    r"|MALLOC_.*|GLIBC_TUNABLES|(OPENBLAS|OMP|MKL|NUMEXPR)_.*|ORT_.*|CC|CFLAGS"
)
_context = multiprocessing.get_context("forkserver")


class ForkServer:
    """Use it from the main thread alone: the fork server dies with the thread that starts it."""

    def __init__(self) -> None:
        os.environ |= dict.fromkeys(SINGLE, "1")  # no threads before a fork, and none that spin beside others' children
        here = str(Path(version.__file__).resolve().parents[1])  # where the package lies, not `api`: it may be a link
        given = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        self.given = tuple(p for p in given if p != here)
        os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*self.given, here]))  # children are in other folders
        _context.set_forkserver_preload(["planner.api.jobs.preload"])
        self._pid: int | None = None
        self._warm = threading.Event()

    def ready(self) -> bool:
        """Whether it has imported everything, so that a child begins at once; it is begun where there is none."""
        with _announced():
            forkserver.ensure_running()
        pid = getattr(forkserver, "_forkserver")._forkserver_pid  # noqa: B009  (no public name)
        if pid != self._pid:
            self._pid, self._warm = pid, threading.Event()
            threading.Thread(target=self._try, args=(self._warm,), name="fork server", daemon=True).start()
        return self._warm.is_set()

    def _try(self, warm: threading.Event) -> None:
        """It answers once all is imported."""
        try:
            process = _context.Process(target=_nothing, daemon=True)
            process.start()
            process.join()
            warm.set()
        except (OSError, EOFError):
            self._pid = None  # it has died: once more


def started() -> set[int]:
    """Processes that there are for children to be started: `multiprocessing` asks after them itself."""
    known = (getattr(forkserver, "_forkserver")._forkserver_pid, getattr(resource_tracker, "_resource_tracker")._pid)  # noqa: B009
    return {pid for pid in known if pid is not None}


def _nothing() -> None:
    """What the first child does."""


@contextlib.contextmanager
def _announced() -> Iterator[None]:
    """Tells a fork server that begins in here what it is, and nothing of what else stands in the environment: it would
    be in the memory of every child."""
    before = dict(os.environ)
    for name in [n for n in before if not _PASSED.fullmatch(n)]:
        del os.environ[name]
    os.environ[preload.PARENT] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[preload.PARENT]
        os.environ |= before


@dataclass(slots=True)
class Child:
    """A process at work; `receiver` has its messages."""

    process: ForkServerProcess
    receiver: Connection
    folder: Path
    started: float

    def messages(self) -> list[bytes]:
        """Those that wait.  EOFError or OSError behind the last one."""
        found: list[bytes] = []
        size = 0
        while len(found) < MESSAGES and size < MESSAGES_BYTES and self.receiver.poll(0):
            try:
                found.append(self.receiver.recv_bytes(MESSAGE_BYTES))
                size += len(found[-1])
            except (EOFError, OSError):
                if found:
                    break
                raise
        return found

    def ask(self) -> None:
        """For the best so far."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """The child and all that it started."""
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(self.pid, signal.SIGKILL)

    def cpu_s(self) -> float:
        """Processor time of the process so far; 0 where it has gone."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def log_tail(self, size: int = 2000) -> str:
        """The end of what it printed."""
        try:
            with open(self.folder / "log", "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))  # it may be as large as a file may be
                return file.read(size).decode("utf-8", "replace")
        except OSError:
            return ""

    def clear(self) -> None:
        """Removes what is left of an ended child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # whatever it started
        self.process.join(5.0)
        self.receiver.close()
        remove_soon(self.folder)

    @property
    def pid(self) -> int:
        """Of the process, and of its group."""
        pid = self.process.pid
        assert pid is not None
        return pid


def begin(work: JobInput, entry: Entry = main) -> Child:
    """Starts a child, in `entry`, whose folder is there with its inputs.  OSError where that cannot be."""
    started = time.monotonic()
    receiver, sender = _context.Pipe(duplex=False)
    arguments: tuple[Any, ...] = (sender, work)
    process = _context.Process(target=entry, args=arguments, daemon=True)
    with _announced():  # it is started anew where it was killed
        process.start()
    sender.close()
    return Child(process, receiver, work.folder, started)
