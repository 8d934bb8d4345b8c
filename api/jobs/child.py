"""What runs in a child: limits, the work, and what is said of it over a pipe.

Messages are JSON, one to a `send_bytes`; the worker reads no pickles of a process that has looked at a stranger's file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from planner.api.jobs import preload
from planner.api.jobs.errors import BlobDamaged, BlobMissing
from planner.api.jobs.execute import Tell, execute
from planner.api.jobs.handover import CODE, hand_out
from planner.api.jobs.limits import impose
from planner.api.jobs.problems import problem
from planner.api.jobs.work import JobInput, JobResult
from planner.errors import (
    EndedError,
    InfeasibleError,
    InputError,
    LimitError,
    NoPlanError,
    PlannerError,
    UsageError,
    VerificationError,
)
from planner.processes import die_with

__all__ = ["MESSAGE_BYTES", "main"]

MESSAGE_BYTES = 1 << 20
LINE = 2000  # characters of a line of progress
TRACE = 20_000  # characters of a traceback, of which the last say most
LINES = 300  # of a child
EVERY_S = 0.2  # between two tellings of progress, growing to a hundredth of the time so far
STATUSES = {
    UsageError: ("usage", True),
    InputError: ("input-invalid", True),
    InfeasibleError: ("cannot-fit", True),
    NoPlanError: ("no-plan", False),  # it may have been for want of time
    VerificationError: ("verification-failed", True),
}


def main(sender: Connection, work: JobInput, do: Callable[[JobInput, Tell], JobResult] = execute) -> None:
    """Does the work and ends the process."""
    _settle(work, sender.fileno())
    teller = Teller(sender)
    teller.send(kind="begun", at=time.monotonic(), threads=len(os.listdir("/proc/self/task")))
    limited = threading.Event()
    signal.signal(signal.SIGXCPU, _at_the_time_limit(limited))
    try:
        end = _end(work, do(work, teller), limited.is_set())
    except BaseException as error:
        end = _failed(error)
    used = resource.getrusage(resource.RUSAGE_SELF)
    teller.send(**end, cpu_s=used.ru_utime + used.ru_stime, peak_bytes=used.ru_maxrss * 1024)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # threads of solvers may be at work still


def _settle(work: JobInput, messages: int) -> None:
    """Makes this process one that harms nobody, reaches nothing but its folder and outlives nobody; `messages`: the
    file that leads to the worker."""
    die_with(preload.SERVER)
    os.setsid()  # a group of its own, ended with it
    os.chdir(work.scratch)
    os.environ["TMPDIR"] = tempfile.tempdir = str(work.scratch)
    null, log = os.open(os.devnull, os.O_RDONLY), os.open("../log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    for handle in map(int, os.listdir("/proc/self/fd")):  # also those that lead to the fork server and beyond
        if handle > 2 and handle != messages:
            with contextlib.suppress(OSError):
                os.close(handle)
    impose(work.limits)
    code = work.folder / CODE
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(code), os.environ.get("PYTHONPATH"))))
    own = (work.scratch, work.folder / "out", *([] if work.cache is None else [work.cache]))
    work.confinement.enter(read=(work.folder / "in", code), write=own)


def _at_the_time_limit(limited: threading.Event) -> Any:
    """SIGXCPU asks for the best so far, as SIGTERM does, where somebody listens to that."""
    owner = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        forked = os.getpid() != owner  # with a limit of its own
        if forked or signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, signal.SIG_IGN):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        limited.set()
        os.kill(owner, signal.SIGTERM)

    return handle


class Teller:
    """Sends what the work says of itself, not too often.  Solvers call it from several threads."""

    def __init__(self, sender: Connection) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._begun = time.monotonic()
        self._next = 0.0
        self._held: dict[str, Any] | None = None
        self._phase: object = None
        self._lines = 0

    def phase(self, name: Any) -> None:
        self._flush()
        if name != self._phase:
            self._phase = name
            self.send(kind="phase", phase=str(name))

    def progress(self, incumbent_s: float, bound_s: float, gap: float, seconds: float) -> None:
        now = time.monotonic()
        figures = {"incumbent_s": incumbent_s, "bound_s": bound_s, "gap": gap, "seconds": seconds}
        with self._lock:
            if now < self._next:
                self._held = figures
                return
            self._next = now + max(EVERY_S, 0.01 * (now - self._begun))
            self._held = None
        self.send(kind="progress", **figures)

    def say(self, line: str) -> None:
        self._lines += 1
        if self._lines <= LINES:
            self.send(kind="message", text=line[:LINE])

    def _flush(self) -> None:
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            self.send(kind="progress", **held)

    def send(self, **message: Any) -> None:
        if message["kind"] in ("result", "error", "died", "fault"):
            self._flush()
        data = json.dumps(message).encode()
        with self._lock:
            self._sender.send_bytes(data)


def _end(work: JobInput, outcome: JobResult, limited: bool) -> dict[str, Any]:
    """Leaves the result for the worker, and says where."""
    size = sum(len(content) for content, _ in outcome.files.values())
    if size > work.limits.result_bytes:
        message = f"{size} bytes, and a result may have {work.limits.result_bytes}"
        return {"kind": "error", "problem": problem("result-too-large", message), "lasting": True}
    summary = dict(outcome.summary)
    if limited:
        summary["stopped"] = "child-cpu"
    end = {
        "kind": "result",
        **hand_out(work.folder, outcome.files, outcome.plan),
        "summary": summary,
        "cancelled": outcome.cancelled,
        "shared": outcome.shared and not limited,
        "limited": limited,
    }
    if len(json.dumps(end)) > MESSAGE_BYTES // 2:
        end["summary"] = {"note": "the summary is too long to be shown; the files have it"}
    return end


def _failed(error: BaseException) -> dict[str, Any]:
    """The problem that an error is."""
    traceback.print_exception(error)
    message = str(error)[:8000]
    lasting, more = False, {}
    match error:
        case LimitError():
            name = f"child-{error.limit}"
        case EndedError():  # as if this process had died: the worker tries again
            return {"kind": "died", "how": message[:LINE]}
        case PlannerError():
            kind = next((c for c in type(error).__mro__ if c in STATUSES), InputError)
            name, lasting = STATUSES[kind]
            name = getattr(error, "problem", name)
            if isinstance(error, InfeasibleError):
                more = {"lower_bound_bytes": error.lower_bound_bytes, "sufficient_bytes": error.sufficient_bytes}
        case _ if _is_want_of_memory(error):
            name, message = "child-memory", "memory ran out; a smaller model, or fewer candidates, would do"
        case BlobMissing() | BlobDamaged():
            name = "input-lost"
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            name, message = "storage-full", f"the result cannot be written: {error.strerror}"
        case _:
            text = "".join(traceback.format_exception(error))[-TRACE:]
            return {"kind": "fault", "trace": text}
    return {"kind": "error", "problem": problem(name, message, **more), "lasting": lasting}


def _is_want_of_memory(error: BaseException) -> bool:
    match error:
        case MemoryError():
            return True
        case OSError():
            return error.errno == errno.ENOMEM
        case RuntimeError():
            return "start new thread" in str(error)  # no room for its stack
    return False
