"""The worker of `planner solve`: reads the instance, searches, and reports in JSON lines on standard output.

Every choice it reports has passed the independent evaluator.  It ends when its parent does (end of standard input).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from planner.errors import InputError
from planner.search.certificates.certificate import Certificate, problem_digest
from planner.search.certificates.file import write_certificate
from planner.search.checks.check import proven_bound
from planner.search.checks.dual import Refused
from planner.search.control import Control, Report
from planner.search.evaluate import evaluate, peak_memory
from planner.search.problem import Problem, Solution
from planner.search.saved.instance import read_instance
from planner.search.saved.route import search
from planner.search.saved.text import Numbers, decode, read_bytes

__all__ = ["main"]

MARGIN = 0.1  # seconds before the limit at which the search is told to stop
CERTIFYING = 0.25  # share of the time kept for a certificate
MEMORY_SHARE = 0.85  # of the machine's
SAVING = 0.3  # seconds before the limit at which a proof has to be finished, to be checked and written,
SAVING_EDGE = 1e-4  # and so many more for every edge
COURTESY = 10  # checking and sending choices takes at most one part in this of the time
GARBAGE = 100_000  # new objects before they are looked through for cycles: reading makes many, and drops none


class _Channel:
    """Lines to the parent.  Choices are checked and sent by a thread of their own, the latest only."""

    def __init__(self, out: TextIO) -> None:
        self.out = out
        self.lock = threading.Lock()
        self.choosing = threading.Lock()  # choices are compared and sent one at a time, so that the last is the best
        self.sent: int | None = None  # cost of the choice last sent
        self.stop = threading.Event()

    def send(self, kind: str, **fields: Any) -> None:
        line = json.dumps({"kind": kind, **fields})
        with self.lock, contextlib.suppress(BrokenPipeError):
            self.out.write(line + "\n")
            self.out.flush()

    def choice(self, problem: Problem, choice: tuple[int, ...] | None) -> int | None:
        """Sends the choice where it is valid and better than the last one sent; its cost (None: refused)."""
        if choice is None:
            return None
        cost = evaluate(problem, choice)
        with self.choosing:
            if cost is not None and (self.sent is None or cost < self.sent):
                self.sent = cost
                self.send("choice", choice=list(choice), cost=cost)
        return cost

    def follow(self, problem: Problem, control: Control) -> None:
        """Sends what is offered until `stop` is set."""
        pause = 0.02
        offered: int | None = None
        while not self.stop.wait(pause):
            if control.best is not None and control.cost != offered:
                offered = control.cost
                begin = time.monotonic()
                self.choice(problem, control.best)
                pause = max(0.05, COURTESY * (time.monotonic() - begin))


def main() -> int:
    request = json.loads(sys.argv[1])
    channel = _Channel(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what libraries print must not mix with the lines
    gc.freeze()
    gc.set_threshold(GARBAGE, 20, 20)
    cancel = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: cancel.set())
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _bound_memory()
    work = threading.Thread(target=_guarded, args=(request, channel, cancel), daemon=True)
    work.start()
    while work.is_alive():  # signals are heard in the main thread only
        work.join(0.05)
    sys.stderr.flush()
    os._exit(0)  # threads of libraries may still run


def _guarded(request: dict[str, Any], channel: _Channel, cancel: threading.Event) -> None:
    try:
        _solve(request, channel, cancel)
    except InputError as e:
        channel.send("error", message=str(e))
    except MemoryError:
        channel.send("warning", line="there is not enough memory for this instance")
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the parent says so


def _solve(request: dict[str, Any], channel: _Channel, cancel: threading.Event) -> None:
    begin: float = request["started"]
    limit: float | None = request["time_limit"]
    problem = read_instance(Path(request["instance"]))
    channel.send(
        "facts",
        facts={
            "nodes": len(problem.nodes),
            "edges": len(problem.edges),
            "usage_limit": problem.limit,
            "memory_lower_bound": None,
            "peak_memory": None,
            "certified_lower_bound": None,
        },
    )
    last = None if limit is None else begin + limit - min(MARGIN, 0.1 * limit)
    searching = limit
    if limit is not None:
        share = 1 - CERTIFYING if request["certificate"] else 1.0
        searching = share * (limit - min(MARGIN, 0.1 * limit))

    def report(step: Report) -> None:
        seconds = round(time.monotonic() - begin, 3)
        channel.send(
            "report",
            incumbent=step.incumbent,
            bound=step.bound,
            gap=step.gap,
            solver=step.solver,
            seconds=seconds,
        )

    def say(line: str) -> None:
        channel.send("say", line=line, seconds=round(time.monotonic() - begin, 3))

    control = Control(searching, cancel, report, say, started=begin)
    if request["solution"] is not None:
        _start(problem, Path(request["solution"]), control)
    if request["evaluate"]:
        found = Solution("unknown", solver="given")
    else:
        found = _search(problem, control, channel, request)
    _finish(problem, control, found, channel, request, last)


def _search(problem: Problem, control: Control, channel: _Channel, request: dict[str, Any]) -> Solution:
    """What the search says; where it fails, what it had found until then is in `control` and stands."""
    threading.Thread(target=channel.follow, args=(problem, control), daemon=True).start()
    try:
        return search(problem, control, solver=request["solver"], seed=request["seed"])
    except MemoryError:
        channel.send("warning", line="the search ran out of memory; what it had found before stands")
    except Exception as e:
        traceback.print_exc()
        channel.send("warning", line=f"the search failed ({type(e).__name__}: {e}); what it had found before stands")
    finally:
        channel.stop.set()
    return Solution("unknown", solver=request["solver"])


def _finish(
    problem: Problem,
    control: Control,
    found: Solution,
    channel: _Channel,
    request: dict[str, Any],
    last: float | None,
) -> None:
    if found.status == "infeasible":
        channel.send("facts", facts={"memory_lower_bound": found.memory_bound})
        if request["certificate"] is not None:
            _certify(problem, control, (None, None), channel, Path(request["certificate"]), last)
        channel.send("done", status="infeasible", bound=max(0, found.bound), solver=found.solver)
        return
    candidates = list({c: None for c in (found.choice or None, control.best) if c is not None})  # mostly the same one
    priced = [(cost, c) for c in candidates if (cost := channel.choice(problem, c)) is not None]
    if len(priced) < len(candidates):
        channel.send("warning", line="a solver proposed a choice that the evaluator refuses; it was set aside")
    bound = max(0, found.bound, control.bound or 0)
    cost, choice = min(priced, default=(None, None))
    if choice is not None:
        channel.send("facts", facts={"peak_memory": peak_memory(problem, choice)})
    status = "unknown" if cost is None else ("optimal" if bound >= cost else "feasible")
    if request["certificate"] is not None:
        _certify(problem, control, (choice, cost), channel, Path(request["certificate"]), last)
    channel.send("done", status=status, bound=bound if cost is None else min(bound, cost), solver=found.solver)


def _certify(
    problem: Problem,
    control: Control,
    best: tuple[tuple[int, ...] | None, int | None],
    channel: _Channel,
    path: Path,
    last: float | None,
) -> None:
    """Writes the certificate; the bound it claims is the one that the checker finds in it."""

    saving = SAVING + SAVING_EDGE * len(problem.edges)

    def late() -> bool:
        return control.cancel.is_set() or (last is not None and time.monotonic() > last - saving)

    from planner.search.certificates.certify import certify  # slow to load, and few ask for a certificate

    proof = control.proof or certify(problem, cost=best[1], prices=control.prices, stop=late)
    try:
        bound = proven_bound(problem, proof)
    except Refused as e:
        channel.send("warning", line=f"no certificate was written: {e}")
        return
    try:
        write_certificate(Certificate(problem_digest(problem), best[0], best[1], bound, proof), path)
    except OSError as e:
        channel.send("warning", line=f"--certificate {path}: cannot be written: {e.strerror}")
        return
    channel.send("facts", facts={"certificate": str(path), "certified_lower_bound": bound})


def _start(problem: Problem, path: Path, control: Control) -> None:
    """Offers the choice in a file: a list of states, or a document whose `solution` is one."""
    value = decode(read_bytes(path), path)
    if isinstance(value, dict):
        value = value.get("solution")
    if not isinstance(value, Numbers) or value.defect is not None:
        raise InputError(f"{path}: expected a list of states, or an object whose `solution` is one")
    states = value.values.tolist()
    if len(states) != len(problem.nodes):
        raise InputError(f"{path}: expected a state for each of {len(problem.nodes)} nodes, found {len(states)}")
    for v, (state, node) in enumerate(zip(states, problem.nodes, strict=True)):
        if not 0 <= state < len(node.costs):
            raise InputError(f"{path}: node {v}: expected a state below {len(node.costs)}, found {state}")
    cost = evaluate(problem, states)
    if cost is None:
        peak, limit = peak_memory(problem, states), problem.limit
        reason = f"needs {peak} bytes, the limit is {limit}" if limit is not None and peak > limit else "is forbidden"
        raise InputError(f"{path}: the choice is not valid: it {reason}")
    control.offer(tuple(states), cost, "given")


def _bound_memory() -> None:
    """Keeps the address space within the machine's memory, so that asking for more fails here and not elsewhere."""
    with contextlib.suppress(OSError, ValueError):
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
            if limit.exists() and (text := limit.read_text().strip()).isdigit():
                most = min(most, int(text))
        resource.setrlimit(resource.RLIMIT_AS, (int(MEMORY_SHARE * most), resource.getrlimit(resource.RLIMIT_AS)[1]))


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
