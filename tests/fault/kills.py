"""Kills at random moments, under load: `python -m tests.fault.kills --kills 200 [--postgres]`.

The service runs as its users run it: `planner serve` (or, with `--direct`, the store and two workers alone).  Clients
submit searches, with idempotency keys and until they are accepted; one process at a time is ended by SIGKILL (the
server, a worker, its fork server, a child at work, the process in which that reads its model), and begun again if
nobody else does that.  With `--postgres` the store is a database, which is restarted now and then.  In the end every
accepted job must have succeeded, once; every blob must be whole.

Recovery is measured from a kill: to the first lease that a worker renews or takes (or to the end of all work: without
a server nobody brings more), to the first thing that a child says or hands in, and, of the server, to its first answer.
The load average is told beside it: the processor seconds that a worker needs to begin are what counts where others take
most of them.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from planner.api.jobs.errors import StoreError
from planner.api.jobs.leases import DEATHS, LEASE_S
from planner.api.jobs.opening import open_store
from planner.api.jobs.records import JobRecord
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.planning import read_plan
from tests.service.postgres import Server, serving_postgres

__all__ = ["Report", "main", "torture"]

ROOT = Path(__file__).parents[2]
MODELS = ("mlp", "gpt_tiny", "moe_tiny")
WAITING = 6  # jobs that are kept unfinished
BYTECODE = Path(tempfile.gettempdir()) / f"planner-kills-bytecode-{os.getuid()}"
PATIENCE_S = 60.0  # for a recovery, and for the end


@dataclass
class Report:
    """What was done and found; `wrong` must be empty."""

    kills: Counter[str] = field(default_factory=Counter)
    accepted: int = 0
    begun_again: int = 0
    most_attempts: int = 0
    blobs: int = 0
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    load: list[float] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        times = {k: sorted(v) for k, v in self.recovery_s.items()}
        return {
            "kills": dict(self.kills),
            "jobs_accepted": self.accepted,
            "jobs_begun_again": self.begun_again,
            "most_attempts": self.most_attempts,
            "blobs_verified": self.blobs,
            "recovery_s": {
                k: {
                    "median": round(v[(len(v) - 1) // 2], 2),
                    "p95": round(v[int(0.95 * (len(v) - 1))], 2),
                    "max": round(v[-1], 2),
                }
                for k, v in times.items()
                if v
            },
            "processors": os.cpu_count(),
            "load_average": {"median": sorted(self.load)[len(self.load) // 2], "max": max(self.load)}
            if self.load
            else {},
            "wrong": self.wrong,
        }


class Direct:
    """The store, and two workers that are begun again here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder, queue=10_000)
        self.tenant = "local"
        self.workers = [self._worker() for _ in range(2)]

    def _worker(self) -> subprocess.Popen[bytes]:
        return _python("from planner.api.jobs import command", "--data", str(self.folder), "--slots", "1")

    def submit(self, model: bytes, options: dict[str, Any], key: str) -> str:
        task = Task("plan", {"model": self.store.blobs.put(model)}, options)
        return self.store.submit(self.tenant, task, name="m", idempotency=key, fingerprint=task.key).job.id

    def kill(self, rng: random.Random) -> str:
        k = rng.randrange(len(self.workers))
        self.workers[k].kill()
        self.workers[k].wait()
        self.workers[k] = self._worker()
        return "worker"

    def answers(self) -> bool:
        return True

    def stop(self) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait()


# What is killed, and how often beside the others.
TARGETS = {"worker": 5, "server": 2, "fork server": 2, "child": 3, "import": 2}
RESTARTS = 1
MOST_DEATHS = DEATHS - 1  # children of one task that are killed: one more is its end, as is documented


class Served:
    """`planner serve`, which begins its workers again by itself; on a database where there is one."""

    def __init__(self, folder: Path, database: Server | None = None) -> None:
        self.folder, self.database = folder, database
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.addresses: dict[str, str] = {}
        if database is not None:
            self.addresses = {"PLANNER_STORE": database.database(), "PLANNER_BLOBS": str(folder / "blobs")}
        self.store = open_store(
            folder, self.addresses.get("PLANNER_STORE", ""), self.addresses.get("PLANNER_BLOBS", "")
        )
        self.deaths: Counter[str] = Counter()
        self.tenant = "local"
        self.server = self._serve()
        _until(self.answers, "the server to answer")

    def _serve(self) -> subprocess.Popen[bytes]:
        return _python(
            "from planner.api import serve as command",
            *(
                "--data",
                str(self.folder),
                "--port",
                str(self.port),
                "--workers",
                "2",
                "--rate",
                "0",
                "--queue",
                "10000",
            ),
            more=self.addresses,
        )

    def _call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def submit(self, model: bytes, options: dict[str, Any], key: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in options.items())
        headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": key}
        return str(self._call("POST", f"/v1/plans?{query}", model, **headers)["id"])

    def kill(self, rng: random.Random) -> str:
        weights = TARGETS | ({"database": RESTARTS} if self.database is not None else {})
        (what,) = rng.choices(list(weights), list(weights.values()))
        if what == "database":
            assert self.database is not None
            self.database.restart()
            return what
        if what == "server":
            self.server.kill()
            self.server.wait()
            self.server = self._serve()
            return what
        until = time.monotonic() + 2.0
        while not (found := self._found(what)):
            if time.monotonic() > until:
                what, until = "worker", time.monotonic() + PATIENCE_S
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)
        return what

    def _found(self, what: str) -> list[int]:
        """Processes of the kind that may be killed."""
        workers = _children_of(self.server.pid)
        if what == "worker":
            return workers
        forks = [p for w in workers for p in _children_of(w) if "forkserver" in _words_of(p)]
        if what == "fork server":
            return forks
        found = []
        for child in (p for f in forks for p in _children_of(f)):
            task = _task_of(child)
            mine = [child] if what == "child" else _children_of(child)
            if task is not None and mine and self.deaths[task] < MOST_DEATHS:
                found.append(mine[0])
        for killed in found[:1]:
            self.deaths[_task_of(killed) or _task_of(_parent_of(killed)) or ""] += 1
        return found[:1]

    def answers(self) -> bool:
        try:
            return bool(self._call("GET", "/healthz"))
        except (OSError, ValueError, http.client.HTTPException):
            return False

    def stop(self) -> None:
        self.server.terminate()
        self.server.wait()


class Client:
    """Keeps so many jobs unfinished; each is submitted under one key until it is accepted."""

    def __init__(self, service: Direct | Served, seed: int) -> None:
        self.service, self.rng = service, random.Random(seed)
        self.models = {name: (ROOT / "sample_graphs" / f"{name}.onnx").read_bytes() for name in MODELS}
        self.accepted: dict[str, str] = {}  # job by key
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self.stopping.is_set():
                counts = _holds(self.service.store.counts)
                if counts is None:
                    time.sleep(0.05)
                    continue
                counts = counts["jobs"]
                if counts["queued"] + counts["running"] < WAITING:
                    self._submit()
                else:
                    time.sleep(0.05)
        except BaseException as e:
            self.failure = e

    def _submit(self) -> None:
        name = self.rng.choice(MODELS)
        # Memory limits that no two requests share, now and then: searched, not found in the cache.
        limit = f"{self.rng.randrange(40 * 10**9, 60 * 10**9) if self.rng.random() < 0.7 else 50 * 10**9}"
        options = {"devices": self.rng.choice((2, 4, 8)), "memory_limit": limit, "name": name}
        key = f"key-{len(self.accepted)}"
        while True:
            try:
                job = self.service.submit(self.models[name], options, key)
            except urllib.error.HTTPError as e:
                if e.code != 503:
                    raise
            except (OSError, ValueError, http.client.HTTPException):  # nobody there, or gone before all was said
                pass
            else:
                self.accepted[key] = job
                return
            if self.stopping.is_set():
                return
            time.sleep(0.05)


def torture(
    service: Direct | Served, kills: int, seed: int, say: Callable[[str], None], enough: threading.Event | None = None
) -> Report:
    """Kills, as many or until it is `enough`, and what was found afterwards."""
    enough = enough or threading.Event()
    report, rng = Report(), random.Random(seed)
    client = Client(service, seed)
    client.start()
    try:
        _heard(service.store, 0.0)
        for k in range(kills):
            if enough.is_set():
                break
            time.sleep(rng.uniform(0.0, 3.0))
            report.load.append(round(os.getloadavg()[0], 1))
            killed = time.time()
            what = service.kill(rng)
            report.kills[what] += 1
            _until(partial(_leased, service.store, killed), "a lease")
            held = time.time() - killed
            heard = _heard(service.store, killed)  # of a server that had no work left, this waits for new work
            if what == "server":
                _until(service.answers, "the server to answer")
                report.recovery_s.setdefault("the server answers", []).append(time.time() - killed)
            report.recovery_s.setdefault(f"a task is held after a {what}", []).append(held)
            report.recovery_s.setdefault(f"a child speaks after a {what}", []).append(heard)
            say(f"{k + 1}: {what}, held {held:.2f} s, heard {heard:.2f} s, {len(client.accepted)} jobs accepted")
    finally:
        client.stop()
    store = service.store
    live = ("queued", "running")
    _until(lambda: not any(store.jobs(service.tenant, status, 1) for status in live), "all jobs to end", 600.0)
    _check(service, client, report)
    return report


def _check(service: Direct | Served, client: Client, report: Report) -> None:
    store, wrong = service.store, report.wrong
    report.accepted = len(client.accepted)
    kept = _all_jobs(service)
    if len(kept) != len(client.accepted):
        wrong.append(f"{len(client.accepted)} requests were accepted, and there are {len(kept)} jobs")
    for key, name in client.accepted.items():
        job = kept.get(name)
        if job is None:
            wrong.append(f"{key}: job {name} was accepted and is not there")
            continue
        if job.status != "succeeded" or job.plan is None:
            wrong.append(f"{key}: job {name} is {job.status}: {job.error}")
            continue
        events = store.events(service.tenant, name, limit=100_000)
        first = events[0].seq if events else 0  # of a job on a task of before it begins anywhere
        if [e.seq for e in events] != list(range(first, first + len(events))):
            wrong.append(f"{key}: events are not numbered one by one")
        if [e.type for e in events if e.last] != ["succeeded"] or not events[-1].last:
            wrong.append(f"{key}: ends are {[e.type for e in events if e.last]}")
        report.begun_again += job.attempts > 1
        report.most_attempts = max(report.most_attempts, job.attempts)
        files = store.plan(service.tenant, job.plan).files
        read_plan(service.folder / "blobs" / files["plan.json"].digest[:2] / files["plan.json"].digest)
    store.database.check()
    with store.database.read() as db:
        named = {r[0] for r in db.execute("SELECT DISTINCT digest FROM files")}
        twice = db.execute("SELECT key FROM tasks WHERE current = 1 GROUP BY key HAVING COUNT(*) > 1").fetchall()
    if twice:
        wrong.append(f"{len(twice)} tasks are current twice")
    for digest in named | set(store.blobs.digests()):
        store.blobs.read(digest)  # BlobDamaged, BlobMissing
        report.blobs += 1


def _all_jobs(service: Direct | Served) -> dict[str, JobRecord]:
    found: dict[str, JobRecord] = {}
    last: str | None = None
    while page := service.store.jobs(service.tenant, limit=500, after=last):
        found |= {j.id: j for j in page}
        last = page[-1].id
    return found


def _leased(store: Store, after: float) -> bool:
    """Whether a worker has renewed or taken a lease since; or all is done, and there is nothing to take."""
    with store.database.read() as db:
        row = db.execute(
            "SELECT COUNT(*) AS n, MAX(leased_until) AS last FROM tasks WHERE status IN ('queued', 'running')"
        ).fetchone()
    return row[0] == 0 or (row[1] is not None and row[1] - LEASE_S > after)


def _heard(store: Store, after: float) -> float:
    """Seconds from a moment to the first event behind it that comes from a child."""

    def first() -> float | None:
        with store.database.read() as db:
            row = db.execute(
                "SELECT MIN(at) FROM events WHERE type IN ('phase', 'progress', 'message', 'succeeded') AND at > ?",
                (after,),
            ).fetchone()
        return None if row[0] is None else float(row[0])

    _until(first, "a child to speak")
    return (first() or after) - after


def _until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> float:
    began = time.monotonic()
    while not _holds(holds):
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)
    return time.monotonic() - began


def _holds(asked: Callable[[], Any]) -> Any:
    """What is asked; nothing holds while a database is away."""
    try:
        return asked()
    except StoreError:
        return None


def _python(command: str, *arguments: str, more: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    code = (
        f"import argparse, sys; {command}\n"
        "p = argparse.ArgumentParser(); command.configure(p); sys.exit(command.run(p.parse_args()))\n"
    )
    environment = {**os.environ, **(more or {}), "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(BYTECODE)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as where it is installed
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _children_of(process: int) -> list[int]:
    """The processes that a process's threads have started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def _words_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _parent_of(process: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _task_of(process: int) -> str | None:
    """The task that a child works on, whose folder it is in: `scratch/WORKER/TASK-TOKEN/work`."""
    with contextlib.suppress(OSError):
        at = Path(os.readlink(f"/proc/{process}/cwd"))
        if at.name == "work" and at.parents[2].name == "scratch":
            return at.parent.name.partition("-")[0]
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill server and workers under load, and check what is left.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--direct", action="store_true", help="store and workers alone, no server")
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own, which is restarted")
    parser.add_argument("--data", type=Path, help="folder to use, and leave; default: a temporary one")
    options = parser.parse_args()
    folder = options.data or Path(tempfile.mkdtemp(prefix="planner-kills-"))
    stack = contextlib.ExitStack()
    database = stack.enter_context(serving_postgres()) if options.postgres else None
    service: Direct | Served = Direct(folder) if options.direct else Served(folder, database)
    began = time.monotonic()
    enough = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: enough.set())  # the kills end, and what is left is looked at
    try:
        report = torture(service, options.kills, options.seed, partial(print, file=sys.stderr, flush=True), enough)
    finally:
        service.stop()
        stack.close()
        if options.data is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**report.document(), "seconds": round(time.monotonic() - began)}, indent=1))
    return 1 if report.wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
