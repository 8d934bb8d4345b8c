"""A pool of processes that read changed content under the limits of the service's children, and who watches them.

Each process takes a stretch of numbers and says one line of each; who is silent for too long, or ends by a signal, was
at the number behind the last line.  A new process goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from planner.api.jobs.limits import Limits, impose
from planner.errors import LimitError, PlannerError
from planner.processes import die_with
from tests.fault.entrances import ENTRANCES, ROOT, Case

__all__ = ["Found", "in_pool", "outcome"]

LIMITS: Final = Limits(memory_bytes=2 << 30, cpu_s=3600)
CPU_S: Final = 30.0  # processor time of one input, after which it hangs
WALL_S: Final = 240.0  # likewise, where it waits for something
STRETCH: Final = 400  # inputs of one process
LONGEST_MESSAGE: Final = 8000  # characters; the service cuts there
LOOK_S: Final = 1.0


@dataclass(frozen=True)
class Found:
    """What became of an input.  `end`: a word, or the class of the error; `where`: of a fault, its type and place."""

    number: int
    entrance: str
    end: str
    where: str = ""
    detail: str = ""
    cpu_s: float = 0.0
    resident_bytes: int = 0


@dataclass
class _Process:
    pid: int
    reader: int
    next: int
    end: int
    rest: bytes = b""
    since: float = field(default_factory=time.monotonic)
    cpu_s: float = 0.0


def outcome(case: Case, folder: Path) -> Found:
    """Reads one input in this process."""
    path = folder / f"in{case.suffix}"
    path.write_bytes(case.content)
    begun, where, detail = time.process_time(), "", ""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the largest size that was resident counts from here
    try:
        end = ENTRANCES[case.entrance].read(path, case.rng())
    except LimitError as e:
        end = f"LimitError {e.limit}"
    except PlannerError as e:
        end, detail = type(e).__name__, str(e)
        if not detail.strip():
            end, where = "fault", f"{end} without a message"
        elif len(detail) > LONGEST_MESSAGE:
            end, where = "fault", f"a message of {len(detail)} characters at {_place(e)}"
    except MemoryError:
        end = "MemoryError"
    except Exception as e:
        end, where = "fault", f"{type(e).__name__} at {_place(e)}"
        detail = "".join(traceback.format_exception(e))[-3000:]
    for left in folder.iterdir():
        left.unlink()
    return Found(case.number, case.entrance, end, where, detail[:3000], time.process_time() - begun, _most())


def _place(error: BaseException) -> str:
    """The innermost line of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(str(ROOT))]
    ours = [f for f in frames if "/tests/fault/" not in f.filename] or frames
    last = ours[-1]
    return f"{Path(last.filename).relative_to(ROOT)}:{last.lineno} {last.name}"


def _most() -> int:
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


def in_pool(case: Callable[[int], Case], first: int, count: int, processes: int) -> Iterator[Found]:
    """What became of each of so many inputs, as they end."""
    waiting = [(k, min(k + STRETCH, first + count)) for k in range(first, first + count, STRETCH)][::-1]
    at_work: dict[int, _Process] = {}
    try:
        while waiting or at_work:
            while waiting and len(at_work) < processes:
                begun = _begin(case, *waiting.pop())
                at_work[begun.reader] = begun
            for reader in select.select(list(at_work), [], [], LOOK_S)[0]:
                process = at_work[reader]
                if found := _heard(process):
                    yield from found
                    continue
                del at_work[reader]
                os.close(reader)
                _, status = os.waitpid(process.pid, 0)
                if process.next < process.end:
                    yield _died(case, process, status)
                    waiting.append((process.next + 1, process.end))
            for process in at_work.values():
                _watch(process)
    finally:
        for process in at_work.values():
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)


def _begin(case: Callable[[int], Case], first: int, end: int) -> _Process:
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reader)
            _work(case, first, end, writer, parent)
        finally:
            os._exit(0)
    os.close(writer)
    return _Process(pid, reader, first, end)


def _work(case: Callable[[int], Case], first: int, end: int, writer: int, parent: int) -> None:
    die_with(parent)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for n in (0, 1, 2):
        os.dup2(null, n)
    impose(LIMITS)
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=base) as name, os.fdopen(writer, "wb") as out:
        os.chdir(name)
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp()
        folder = Path(tempfile.mkdtemp())
        for number in range(first, end):
            found = outcome(case(number), folder)
            out.write(json.dumps(vars(found)).encode() + b"\n")
            out.flush()


def _heard(process: _Process) -> list[Found]:
    """Empty where it has ended."""
    content = os.read(process.reader, 1 << 16)
    lines = (process.rest + content).split(b"\n")
    process.rest = lines.pop()
    while content and not lines:
        content = os.read(process.reader, 1 << 16)
        lines = (process.rest + content).split(b"\n")
        process.rest = lines.pop()
    found = [Found(**json.loads(line)) for line in lines]
    if found:
        process.next, process.since = found[-1].number + 1, time.monotonic()
        process.cpu_s = _cpu(process.pid)
    return found


def _cpu(pid: int) -> float:
    """Of the process and of those that it has begun and that have ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _watch(process: _Process) -> None:
    """Ends who takes too long; the number at which it was is known as one of a process that died."""
    if _cpu(process.pid) - process.cpu_s > CPU_S or time.monotonic() - process.since > WALL_S:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGXCPU)
            os.kill(process.pid, signal.SIGALRM)


def _died(case: Callable[[int], Case], process: _Process, status: int) -> Found:
    number = process.next
    if not os.WIFSIGNALED(status):
        why = f"its process ended with status {os.waitstatus_to_exitcode(status)}"
    elif os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGALRM):
        why = "it hangs"
    else:
        why = f"its process ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return Found(number, case(number).entrance, "fault", why, cpu_s=CPU_S if why == "it hangs" else 0.0)
