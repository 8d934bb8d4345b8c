"""Watches the worker of `planner solve`: passes its progress on, keeps its best choice, ends it in time."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["SolveState", "started", "watch"]

WORKER = "planner.cli.solve_worker"
GRACE = 0.35  # seconds past the limit that a worker gets to hand in its answer
CANCEL_GRACE = 1.2  # and after a cancellation


@dataclass(slots=True)
class SolveState:
    """What is known so far: `error` says what is wrong with the input, `facts` are further fields of the result."""

    status: str = "unknown"
    choice: list[int] | None = None
    cost: int | None = None
    bound: int = 0  # costs are not negative
    solver: str = ""
    seconds: float = 0.0
    error: str | None = None
    warnings: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def started() -> float:
    """When the command started, on the monotonic clock: with this process where that is all it runs and the system
    tells, else now."""
    now = time.monotonic()
    if not _alone():
        return now
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError, IndexError):
        return now
    return now - age if age >= 0 else now


def _alone() -> bool:
    """Whether this process was started for the command and ends with it."""
    return Path(sys.argv[0]).name in ("planner", "main.py")


def watch(request: dict[str, Any], show: Callable[[dict[str, Any]], None]) -> SolveState:
    """Runs the worker on `request`; returns in time whatever it does.  SIGINT and SIGTERM cancel it."""
    outcome = SolveState()
    begin: float = request["started"]
    limit = request["time_limit"]
    end = None if limit is None else begin + limit + min(GRACE, 0.2 * limit)
    command = [sys.executable, "-m", WORKER, json.dumps(request)]
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # the terminal's Ctrl-C comes here, and from here in order to the worker
        env={**single, **os.environ},
    )
    events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    threading.Thread(target=_pump, args=(worker, events), daemon=True).start()
    finished = False
    with _cancelled_by_signals(worker) as cancelled:
        while not finished:
            until = end
            if cancelled:
                until = min(cancelled[0] + CANCEL_GRACE, end or cancelled[0] + CANCEL_GRACE)
            try:
                # Woken now and then: a signal may have moved the deadline.
                event = events.get(timeout=0.1 if until is None else max(0.0, min(0.1, until - time.monotonic())))
            except queue.Empty:
                if until is not None and time.monotonic() >= until:
                    so_far = "this is its best so far" if outcome.choice is not None else "it had found no choice yet"
                    outcome.warnings.append(f"the solver did not stop in time and was ended; {so_far}")
                    break
                continue
            if event is None:
                if not (cancelled and worker.wait() == -signal.SIGTERM):  # told to stop before it could listen
                    outcome.warnings += _death(worker)
                break
            finished = _take(event, outcome, show)
    _end(worker)
    outcome.seconds = time.monotonic() - begin
    if outcome.cost is not None and outcome.status == "unknown":
        outcome.status = "optimal" if outcome.bound >= outcome.cost else "feasible"
        outcome.bound = min(outcome.bound, outcome.cost)
    return outcome


def _take(event: dict[str, Any], outcome: SolveState, show: Callable[[dict[str, Any]], None]) -> bool:
    """Takes an event in; whether it was the last."""
    match event["kind"]:
        case "report":
            if event["bound"] is not None:
                outcome.bound = max(outcome.bound, event["bound"])
            outcome.solver = event["solver"]
            show(event)
        case "say":
            show(event)
        case "facts":
            outcome.facts |= event["facts"]
        case "choice":
            if outcome.cost is None or event["cost"] < outcome.cost:
                outcome.choice, outcome.cost = event["choice"], event["cost"]
        case "warning":
            outcome.warnings.append(event["line"])
        case "error":
            outcome.error = event["message"]
            return True
        case "done":
            outcome.status, outcome.bound, outcome.solver = event["status"], event["bound"], event["solver"]
            return True
    return False


def _pump(worker: subprocess.Popen[bytes], events: queue.SimpleQueue[dict[str, Any] | None]) -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        with suppress(ValueError):  # a line cut short by the end of the worker
            events.put(json.loads(line))
    events.put(None)


@contextmanager
def _cancelled_by_signals(worker: subprocess.Popen[bytes]) -> Iterator[list[float]]:
    """The list receives the time of the first SIGINT or SIGTERM; the worker is told to stop."""
    times: list[float] = []

    def cancel(*_: object) -> None:
        if not times:
            times.append(time.monotonic())
            with suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield times
        return
    before = {s: signal.signal(s, cancel) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield times
    finally:
        if not _alone():  # where it is, a late signal must not keep the answer from being printed
            for number, handler in before.items():
                signal.signal(number, handler)


def _death(worker: subprocess.Popen[bytes]) -> list[str]:
    code = worker.wait()
    if code == 0:
        return []
    reason = f"by signal {-code}" if code < 0 else f"with status {code}"
    hint = " (no memory left?)" if code == -signal.SIGKILL else ""
    return [f"the solver ended {reason}{hint}; what it had reported before stands"]


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ends the worker and whatever it started: it leads a process group of its own."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
    assert worker.stdin is not None
    with suppress(BrokenPipeError):
        worker.stdin.close()
