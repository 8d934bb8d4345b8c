"""A service of several hosts that share nothing but a network: `python -m tests.fault.hosts` (Linux, root, PostgreSQL).

Two replicas and three workers run in network namespaces of their own, on one PostgreSQL server and one server that
speaks S3, which they reach over a bridge.  Tasks sleep before their work, so that a machine of two processors can show
what workers gain together.  The parts may be named: `throughput`, `cut`, `hung`, `upgrade`.

- `throughput`: jobs in a minute with one, two and three workers.
- `cut`: the host of a worker at work loses its network.  Another worker ends the task, once; the host comes back.
- `hung`: the worker of a server of its own stands still (SIGSTOP), and is replaced.
- `upgrade`: a release of a later version of the tables takes over under load: its `planner store migrate`, its workers,
  its replicas; then the old ones end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from planner.api.jobs.opening import open_store
from planner.api.jobs.store import Store
from tests.fault.network import Host, Network, network
from tests.service.postgres import Server, serving_postgres

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
MODEL = (ROOT / "sample_graphs" / "mlp.onnx").read_bytes()
SLEEP_S = 5.0
PORT = 8080
PATIENCE_S = 120.0


@dataclass
class Cluster:
    """`store`: as this machine opens it, to look at."""

    network: Network
    store: Store
    environment: dict[str, str]
    key: str
    folder: Path
    stack: ExitStack
    submitted: list[str] = field(default_factory=list)

    def start(self, host: Host, *words: str, tree: Path = ROOT) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self.environment, "PYTHONPATH": str(tree)}
        command = [*host.within, sys.executable, "-m", *words, "--data", str(self.folder / host.name)]
        with open(self.folder / f"{host.name}.log", "ab") as log:
            process = subprocess.Popen(
                command, env=environment, cwd=tree, stdout=log, stderr=log, start_new_session=True
            )
        self.stack.callback(_end, process)
        return process

    def worker(self, host: Host, seconds: float = SLEEP_S, tree: Path = ROOT) -> subprocess.Popen[bytes]:
        return self.start(host, "tests.fault.slow", str(seconds), tree=tree)

    def replica(self, host: Host, *words: str, tree: Path = ROOT) -> httpx.Client:
        self.start(host, "planner", "serve", "--host", "0.0.0.0", "--port", str(PORT), "--rate", "0", *words, tree=tree)
        client = httpx.Client(
            base_url=f"http://{host.address}:{PORT}", headers={"authorization": f"Bearer {self.key}"}, timeout=30
        )
        self.stack.callback(client.close)
        _until(lambda: _answers(client), f"the replica on {host.name} to answer")
        return client

    def submit(self, client: httpx.Client) -> str:
        """A job that no other is equal to."""
        limit = 40 * 10**9 + len(self.submitted)
        answer = client.post(
            f"/v1/plans?devices=2&memory_limit={limit}",
            content=MODEL,
            headers={"content-type": "application/octet-stream"},
        )
        answer.raise_for_status()
        self.submitted.append(answer.json()["id"])
        return self.submitted[-1]

    def live_workers(self) -> int:
        return len(self.store.leases.workers())

    def holder(self, job: str, but: str | None = None) -> str | None:
        """The worker that holds the job's task; None where nobody else than `but` does."""
        worker = self.row(job)["worker"]
        return None if worker in (None, but) else str(worker)

    def latest_worker(self, but: str | None = None) -> tuple[str, int] | None:
        """Name and process of the worker that was heard of last; None where that is `but`."""
        with self.store.database.read() as db:
            row = db.execute("SELECT name, pid FROM workers ORDER BY seen_at DESC LIMIT 1").fetchone()
        return None if row is None or row[0] == but else (row[0], row[1])

    def row(self, job: str) -> dict[str, Any]:
        with self.store.database.read() as db:
            row = db.execute(
                "SELECT t.id, t.status, t.worker, t.attempts FROM tasks t JOIN jobs j ON j.task = t.id WHERE j.id = ?",
                (job,),
            ).fetchone()
        return dict(zip(("task", "status", "worker", "attempts"), row, strict=True))

    def ended(self, jobs: list[str], seconds: float = 600.0) -> None:
        _until(
            lambda: all(self.row(j)["status"] not in ("queued", "running") for j in jobs), "the jobs to end", seconds
        )

    def wrong(self) -> list[str]:
        """What is not as it must be: every job that was accepted succeeded, and ended once."""
        found = []
        for job in self.submitted:
            events = [e.type for e in self.store.events("team", job, limit=100_000)]
            ends = [e for e in events if e in ("succeeded", "failed", "cancelled")]
            if self.row(job)["status"] != "succeeded" or ends != ["succeeded"]:
                found.append(f"job {job}: {self.row(job)}, ends {ends}")
        return found


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _until(holds: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> float:
    """How many seconds that took."""
    began = time.monotonic()
    while not holds():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with network() as net, serving_postgres() as database, ExitStack() as outer:
        url = _listening(database, net)
        bucket = ThreadedMotoServer(ip_address=net.address, port=0, verbose=False)
        bucket.start()
        outer.callback(bucket.stop)
        endpoint = "http://{}:{}".format(*bucket.get_host_and_port())
        environment = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "PLANNER_STORE": url,
            "PLANNER_BLOBS": f"s3://plans/fault?endpoint={endpoint}",
        }
        os.environ.update(environment)
        boto3.session.Session().client("s3", endpoint_url=endpoint).create_bucket(Bucket="plans")
        store = open_store(folder / "looks on", url, environment["PLANNER_BLOBS"])
        outer.callback(store.database.close)
        _, key = store.keys.create("team", "")
        with ExitStack() as stack:
            yield Cluster(net, store, environment, key, folder, stack)


def _listening(database: Server, net: Network) -> str:
    url = database.database()
    database.listen(net.address)
    return database.reached(url)


def _workers(c: Cluster, count: int) -> None:
    _until(lambda: c.live_workers() == count, f"{count} workers")


def throughput(c: Cluster) -> dict[str, Any]:
    a, b = (c.replica(c.network.host(), "--workers", "0") for _ in range(2))
    found: dict[str, Any] = {"a task sleeps, s": SLEEP_S}
    for count in (1, 2, 3):
        c.worker(c.network.host())
        _workers(c, count)
        c.ended([c.submit(a)])  # the fork server is warm
        began = time.monotonic()
        jobs = [c.submit((a, b)[k % 2]) for k in range(5 * count)]
        c.ended(jobs)
        found[f"jobs a minute with {count}"] = round(60 * len(jobs) / (time.monotonic() - began), 1)
    return found


def cut(c: Cluster, times: int = 5) -> dict[str, Any]:
    hosts = [c.network.host() for _ in range(3)]
    workers = {h.name: c.worker(h, 1.5) for h in hosts}
    client = c.replica(c.network.host(), "--workers", "0")
    _until(lambda: c.live_workers() == len(workers), "the workers")
    elsewhere, ended, back = [], [], []
    for _ in range(times):
        job = c.submit(client)
        _until(partial(c.holder, job), "a worker to take the job")
        first = str(c.holder(job))
        (host,) = [h for h in hosts if _runs(workers[h.name], first)]
        host.cut()
        began = time.monotonic()
        _until(partial(c.holder, job, but=first), "another worker to take the job")
        elsewhere.append(time.monotonic() - began)
        c.ended([job])
        ended.append(time.monotonic() - began)
        host.join()
        back.append(_until(lambda: c.live_workers() == len(workers), "the host to come back"))
    return {
        "times": times,
        "a task is held elsewhere after at most, s": round(max(elsewhere), 2),
        "and done after at most, s": round(max(ended), 2),
        "a host works again after at most, s": round(max(back), 2),
    }


def _runs(process: subprocess.Popen[bytes], worker: str) -> bool:
    """Whether a worker of that name is a process, or one that `ip` has started for it."""
    return f"-{process.pid}-" in worker  # `ip netns exec` becomes the command


def hung(c: Cluster, times: int = 3) -> dict[str, Any]:
    client = c.replica(c.network.host(), "--workers", "1")
    _until(lambda: c.live_workers() == 1, "the worker")
    took = []
    for _ in range(times):
        found = c.latest_worker()
        assert found is not None
        name, process = found
        os.kill(process, signal.SIGSTOP)
        took.append(_until(partial(c.latest_worker, but=name), "another worker"))
        c.ended([c.submit(client)])
    return {"times": times, "a worker that hangs is replaced after at most, s": round(max(took), 2)}


def _next_release(folder: Path) -> Path:
    """This tree, one version of the tables later: a task has one more column."""
    tree = folder / "next"
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "docs"))
    schema = tree / "api" / "jobs" / "postgres" / "schema.py"
    text = schema.read_text(encoding="utf-8")
    (version,) = map(int, re.findall(r"^VERSION: Final = (\d+)", text, re.M))
    text = re.sub(r"^VERSION: Final = \d+", f"VERSION: Final = {version + 1}", text, flags=re.M)
    text = re.sub(r"^OLDEST: Final = \d+", f"OLDEST: Final = {version}", text, flags=re.M)
    step = f'_STEPS[{version}] = ({version}, ("ALTER TABLE tasks ADD COLUMN note TEXT",))\n\n\ndef make_or_check('
    schema.write_text(text.replace("def make_or_check(", step, 1), encoding="utf-8")
    return tree


def upgrade(c: Cluster) -> dict[str, Any]:
    tree = _next_release(c.folder)
    old_hosts, new_hosts = ([c.network.host() for _ in range(3)] for _ in range(2))
    old = [c.worker(h, 1.0) for h in old_hosts[:2]]
    client = c.replica(old_hosts[2], "--workers", "0")
    clients, stop, refused = [client], threading.Event(), Counter[str]()

    def load() -> None:
        while not stop.is_set():
            time.sleep(0.4)
            if sum(c.row(j)["status"] in ("queued", "running") for j in c.submitted[-10:]) >= 4:
                continue
            try:
                c.submit(clients[-1])
            except httpx.HTTPError as e:
                refused[type(e).__name__] += 1

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    _until(lambda: any(c.row(j)["status"] == "succeeded" for j in list(c.submitted)), "the first job")
    command = [sys.executable, "-m", "planner", "store", "migrate", "--json"]
    migrated = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=tree, check=True, capture_output=True, text=True
    )
    between = len(c.submitted)
    _until(lambda: any(c.row(j)["status"] == "succeeded" for j in c.submitted[between:]), "a job on the new tables")
    for host in new_hosts[:2]:
        c.worker(host, 1.0, tree)
    clients.append(c.replica(new_hosts[2], "--workers", "0", tree=tree))
    _until(lambda: c.live_workers() == 4, "the new workers")
    time.sleep(3.0)
    for process in old:
        process.send_signal(signal.SIGTERM)
    for process in old:
        process.wait(60)
    after = len(c.submitted)
    _until(lambda: any(c.row(j)["status"] == "succeeded" for j in c.submitted[after:]), "a job of the new release")
    stop.set()
    thread.join()
    c.ended(list(c.submitted))
    begun = {
        name: sum((c.folder / f"{h.name}.log").read_text().count(": plan, attempt") for h in hosts[:2])
        for name, hosts in (("before", old_hosts), ("next", new_hosts))
    }
    return {
        "tables": json.loads(migrated.stdout),
        "jobs accepted": len(c.submitted),
        "requests that failed": dict(refused),
        "tasks begun by workers of the release": begun,
    }


PARTS = {f.__name__: f for f in (throughput, cut, hung, upgrade)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="default: all")
    parser.add_argument("--data", type=Path, help="folder to use, and leave; default: a temporary one")
    options = parser.parse_args()
    wrong: list[str] = []
    for name in options.parts or PARTS:
        folder = (options.data or Path(tempfile.mkdtemp(prefix="planner-hosts-"))) / name
        folder.mkdir(parents=True)
        with cluster(folder) as c:
            figures = PARTS[name](c)
            problems = c.wrong()
        print(json.dumps({name: figures, "jobs": len(c.submitted), "wrong": problems}), flush=True)
        wrong += problems
        if options.data is None:
            shutil.rmtree(folder.parent, ignore_errors=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
