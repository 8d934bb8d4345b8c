"""Import in a child process that can be killed.

Parsing and shape inference run native code that holds the GIL and may allocate without end, so neither a
thread nor a timer in this process can stop them.  The child has an address-space limit and a CPU limit of
its own; the parent reads its answer from a pipe against a wall-clock deadline and kills it when that passes.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import os
import pickle
import resource
import select
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from planner import errors
from planner.frontends.file.foreign import HEAD_BYTES, of_content, of_folder, of_missing, of_name
from planner.ir import Graph
from planner.processes import die_with
from planner.status import show_progress

__all__ = ["Imported", "Limits", "load_data", "load_model", "load_with_file", "run_limited"]

LOOK_S = 1.0  # between two looks at the clock
MAX_FILE_BYTES = 2 * 1024**3 - 1  # protobuf cannot hold more in one message
SIZE_BYTES = 8  # of the length before an answer
COLLECTED = 100_000  # objects that a child makes before it looks for garbage among them
_ATTEMPTS = 3  # of a child of a process with threads
_ASLEEP_S = 10.0  # for which such a child may sleep without computing anything: it waits for nobody
CPU_GRACE = 1  # seconds of processor time between SIGXCPU, which native code may put off, and SIGKILL


@dataclass(frozen=True, slots=True)
class Limits:
    """What the child may use: memory beyond what the parent already maps, CPU time, wall time."""

    memory_bytes: int = 4 * 1024**3
    cpu_seconds: int = 60
    wall_seconds: float = 120.0


DEFAULT_LIMITS = Limits()


class Imported(NamedTuple):
    """`file`: the bytes less the weights, which give the same graph again; `own`: of which
    `planner.frontends.resized.batch` makes the graphs of other batches, where these take no import of their own."""

    graph: Graph
    file: bytes
    own: Graph | None = None


def load_model(
    path: str | os.PathLike[str],
    *,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Graph:
    """Read an ONNX file into a Graph, in a child process under `limits`.

    `bind` gives sizes of symbolic dimensions by name (`batch`) or by input and axis (`input_ids.0`);
    `batch` binds the batch dimension, or rebinds it where the file has a static one.  External weight
    data is never read.  Raises InputError for anything wrong with the file and UsageError for a name in
    `bind` that the model does not have; LimitError and EndedError as of `run_limited`.
    """
    file = Path(path)
    return _load(lambda: _read(file), file.name, dict(bind or {}), batch, limits, keep=False)[0]


def load_with_file(
    path: str | os.PathLike[str],
    *,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Imported:
    """As `load_model`, with what else is known of the model."""
    file = Path(path)
    return _load(lambda: _read(file), file.name, dict(bind or {}), batch, limits, keep=True)


def load_data(
    data: bytes,
    name: str,
    *,
    bind: Mapping[str, int] | None = None,
    batch: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    keep: bool = False,
) -> Imported:
    """As `load_with_file`, of a serialised ModelProto and the name that its graph is to have; without `keep` of the
    graph alone: the bytes are empty then."""
    return _load(lambda: data, f"{name}.onnx", dict(bind or {}), batch, limits, keep=keep)


def _load(
    content: Callable[[], bytes], file: str, bind: Mapping[str, int], batch: int | None, limits: Limits, *, keep: bool
) -> Imported:
    def work() -> Imported:
        from planner.frontends import importer
        from planner.frontends.file.strip import strip_model

        data = content()
        try:
            graph, own = importer.import_with_own(data, name=Path(file).stem, bind=bind, batch=batch)
        except errors.InputError as error:
            other = of_name(Path(file))
            if other is None:
                of_graph = f"{Path(file).stem}: not an ONNX model"
                if str(error).startswith(of_graph):  # which file that is, its name alone may not tell
                    raise errors.InputError(f"{file}{str(error).removeprefix(Path(file).stem)}") from error
                raise
            raise errors.InputError(f"{file}: no ONNX model; a file with this ending {other}") from error
        return Imported(graph, strip_model(data, file), own) if keep else Imported(graph, b"")

    show_progress(f"reading {Path(file).name}")
    found = run_limited(work, limits=limits, what=f"importing {file}")
    if not isinstance(found, Imported):
        raise TypeError(f"the importer returned {type(found).__name__}, not a model")
    return found


def run_limited(work: Callable[[], Any], *, limits: Limits, what: str) -> Any:
    """Result of `work()` computed in a forked child; planner errors come back as themselves.

    LimitError when the child meets its limit of memory, CPU or wall time, EndedError when it dies otherwise: neither
    says that the input is invalid.  A fault of native code in the child of a process with threads is tried again, and
    so is a child that sleeps for good: a fork copies whatever native threads (PyTorch's, gloo's) were in the middle of,
    which that child may trip over, and locks that they held, for which it waits for ever.
    """
    threads = _has_threads()
    for _ in range(_ATTEMPTS if threads else 1):
        try:
            return _attempt(work, limits, what, asleep_s=_ASLEEP_S if threads else float("inf"))
        except _NativeFault as fault:
            last = fault
    raise errors.EndedError(str(last))


class _NativeFault(errors.EndedError):
    """Native code failed in a child, or left it asleep; it leaves this module as the error that it is of."""


def _has_threads() -> bool:
    return len(os.listdir("/proc/self/task")) > 1


def _attempt(work: Callable[[], Any], limits: Limits, what: str, asleep_s: float) -> Any:
    """As `run_limited`, in one child; _NativeFault where native code failed in it, or where it slept so long."""
    read_end, write_end = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(work, write_end, limits, parent)
    os.close(write_end)
    try:
        payload = _receive(read_end, limits.wall_seconds, _Sleep(pid, asleep_s, what))
        if payload is None:
            raise errors.LimitError(
                f"{what}: no result after {limits.wall_seconds:g} s, so it was stopped. The model is far larger or "
                "stranger than any known one, or the machine is busy; simplify it, or strip what is not part of the "
                "graph.",
                limit="wall",
            )
    finally:
        os.close(read_end)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # after its whole answer the child has nothing left to do
        _, status, used = os.wait4(pid, 0)
    return _answer(payload, limits, what, lambda: _death(status, used, limits, what))


def _answer(payload: bytes, limits: Limits, what: str, death: Callable[[], errors.EndedError]) -> Any:
    size, content = payload[:SIZE_BYTES], payload[SIZE_BYTES:]
    if len(size) < SIZE_BYTES or int.from_bytes(size, "big") != len(content):
        raise death()
    kind, value = _loaded(content)
    if kind == "ok":
        return value
    if kind == "memory":
        raise errors.LimitError(f"{what}: it needed more than {limits.memory_bytes / 2**30:g} GiB of memory.")
    if kind == "limit":
        message, limit = value
        raise errors.LimitError(message, limit=limit)
    if kind == "machine":
        raise errors.EndedError(f"{what}: the machine failed it ({value}). Nothing is known of the input; try again.")
    name, message = value
    error = getattr(errors, name, None)
    if isinstance(error, type) and issubclass(error, errors.PlannerError):
        raise error(message)
    raise errors.InputError(f"{what}: the model could not be understood ({name}: {message[:400]}).")


def _loaded(content: bytes) -> tuple[str, Any]:
    collects = gc.isenabled()
    gc.disable()  # all that is made here stays
    try:
        kind, value = pickle.loads(content)
    finally:
        if collects:
            gc.enable()
    return kind, value


def _death(status: int, used: resource.struct_rusage, limits: Limits, what: str) -> errors.EndedError:
    """Why a child that did not answer has ended, by what the kernel says of it.

    What is killed otherwise than by a limit of its own was killed from outside, by the kernel where the machine's
    memory ran out, or by a fault of native code: the same file may be read well at the next attempt.
    """
    if not os.WIFSIGNALED(status):
        return errors.EndedError(
            f"{what}: its process ended without an answer. Nothing is known of the input; try again."
        )
    number = os.WTERMSIG(status)
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    seconds = limits.cpu_seconds if most == resource.RLIM_INFINITY else min(limits.cpu_seconds, most - CPU_GRACE)
    if number == signal.SIGXCPU or (number == signal.SIGKILL and used.ru_utime + used.ru_stime >= seconds):
        return errors.LimitError(f"{what}: it was stopped after {seconds} s of CPU time.", limit="cpu")
    kind = errors.EndedError
    reason = "it was killed from outside, as the kernel does where the machine's memory runs out"
    if number not in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        kind, reason = _NativeFault, "native code failed in it"
    return kind(
        f"{what}: the process was ended by {signal.Signals(number).name}: {reason}. Nothing is known of the input; "
        "try again."
    )


def _child(work: Callable[[], Any], write_end: int, limits: Limits, parent: int) -> None:
    """Runs in the child and never returns."""
    try:
        die_with(parent)
        faulthandler.disable()  # the parent reports, in one line
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # native code complains on standard error
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        _limit(resource.RLIMIT_AS, mapped + limits.memory_bytes)
        used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
        _limit(resource.RLIMIT_CPU, used + limits.cpu_seconds, CPU_GRACE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        gc.freeze()  # looking for garbage among what stays took a quarter of the time
        gc.set_threshold(COLLECTED, 20, 100)
        try:
            payload = pickle.dumps(("ok", work()), protocol=pickle.HIGHEST_PROTOCOL)
        except BaseException as error:  # nothing may escape a forked child; the parent reports it
            payload = pickle.dumps(_said_of(error))
        with os.fdopen(write_end, "wb") as pipe:
            pipe.write(len(payload).to_bytes(SIZE_BYTES, "big"))  # so that a part of an answer is known as one
            pipe.write(payload)
    finally:
        os._exit(0)


def _said_of(error: BaseException) -> tuple[str, Any]:
    """The error for the parent, which learns from it whether the input or the machine is to blame."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return "memory", None
    if isinstance(error, OSError):
        return "machine", str(error)
    if isinstance(error, errors.LimitError):
        return "limit", (str(error), error.limit)
    return "error", (type(error).__name__, str(error))


def _limit(what: int, value: int, grace: int = 0) -> None:
    """Sets a limit, within the one that this process is under already; `grace` above it the end comes unasked."""
    _, most = resource.getrlimit(what)
    if most != resource.RLIM_INFINITY:
        value = min(value, most - grace)
    resource.setrlimit(what, (value, value + grace))


class _Sleep:
    """Looks whether a child sleeps and computes nothing, for how many seconds in a row."""

    def __init__(self, pid: int, most_s: float, what: str) -> None:
        self.pid, self.most_s, self.what = pid, most_s, what
        self._computed, self._seconds = -1, 0.0

    def look(self, seconds: float) -> None:
        """So many seconds after the last look.  _NativeFault where it has slept for too long."""
        # Behind the name, which may hold anything: the state, and after ten other fields the ticks of both times.
        state, *numbers = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        computed = int(numbers[10]) + int(numbers[11])
        asleep = state == "S" and computed == self._computed and not self._waits()
        self._computed, self._seconds = computed, self._seconds + seconds if asleep else 0.0
        if self._seconds >= self.most_s:
            raise _NativeFault(
                f"{self.what}: its process slept for {self.most_s:g} s without computing anything, as it does where a "
                "thread of the process that it was copied from held a lock. Nothing is known of the input; try again."
            )

    def _waits(self) -> bool:
        """Whether the child has children of its own, for which it may wait; so too where the kernel does not say."""
        try:
            known = [f.read_text() for f in Path(f"/proc/{self.pid}/task").glob("*/children")]
            return not known or any(known)
        except OSError:
            return True


def _receive(read_end: int, seconds: float, sleep: _Sleep) -> bytes | None:
    """Everything up to the end of file, or None when the seconds pass first.  _NativeFault where the child sleeps.

    Seconds for which this process was stopped (SIGSTOP) do not count: whoever did that stopped the child as well."""
    chunks: list[bytes] = []
    left = seconds
    watched = select.poll()  # `select` takes no descriptor above 1,023, which a process with many sockets has
    watched.register(read_end, select.POLLIN)
    while left > 0:
        before = time.monotonic()
        readable = watched.poll(1000 * min(left, LOOK_S))
        passed = min(time.monotonic() - before, LOOK_S)  # what took longer than it could was a stop
        left -= passed
        if not readable:
            sleep.look(passed)
            continue
        chunk = os.read(read_end, 1 << 20)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
    return None


def _read(file: Path) -> bytes:
    try:
        size = file.stat().st_size
        if not file.is_file():
            raise errors.InputError(
                f"{file}: expected a file with an ONNX model, found a directory or device. "
                f"{of_folder(file) or 'Give the path of an ONNX model.'}"
            )
        with file.open("rb") as opened:
            other = of_content(file, opened.read(HEAD_BYTES))
        if other is not None:
            raise errors.InputError(f"{file}: {other}")
        if size > MAX_FILE_BYTES:
            raise errors.InputError(
                f"{file}: {size} bytes, but protobuf holds at most 2 GiB. Save the weights as external data; "
                "planning needs only the graph."
            )
        return file.read_bytes()
    except FileNotFoundError:
        instead = of_missing(file) or "Give the path of an ONNX model."
        raise errors.InputError(f"{file}: no such file. {instead}") from None
    except OSError as error:
        raise errors.InputError(f"{file}: cannot be read: {error.strerror}.") from None
