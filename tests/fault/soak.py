"""Mixed load for minutes, and what grows meanwhile: `python -m tests.fault.soak --minutes 12`.

Clients of `planner serve` search, evaluate, compare, cancel, upload what is refused or breaks off, and drop event
streams; what they made they forget again.  Of the server, its workers and their fork servers the memory, descriptors
and threads are noted twice in three seconds, of the whole service its processes, scratch folders, blobs and bytes.

What is left after the first third is held against a straight line (Theil and Sen: the median of the slopes between any
two samples).  A figure leaks where it has grown by more than its allowance along that line.  Rows of events, jobs and
plans belong to what clients have kept, which is nothing in the end; tasks stay until they are purged, and are only
reported.  The exit status is 1 where something leaks, or an answer is a 5xx.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import httpx

from planner.api.jobs.opening import open_store
from tests.fault.kills import _children_of, _words_of
from tests.service.process import served

__all__ = ["growth", "main"]

ROOT: Final = Path(__file__).parents[2]
MODELS: Final = {name: (ROOT / "sample_graphs" / f"{name}.onnx").read_bytes() for name in ("mlp", "gpt_tiny")}
ONNX: Final = {"content-type": "application/octet-stream"}
EVERY_S: Final = 1.5
WARM: Final = 1 / 3  # of the time, in which caches fill
MOST: Final = 150  # samples of one figure that are compared with each other
# Growth over the measured time that is noise: of allocators, of connections that come and go.
ALLOWED: Final = {"MiB": 24.0, "descriptors": 8.0, "threads": 4.0, "processes": 2.0, "folders": 3.0}
LIMITS: Final = (
    "--upload-limit",
    "1MiB",
    "--child-memory",
    "2GiB",
    "--rate",
    "0",
    "--queue",
    "1000",
    "--heartbeat",
    "1",
)

Series = dict[str, list[tuple[float, float]]]


def growth(samples: list[tuple[float, float]]) -> float:
    """By how much the figure has grown along its line, over the time that the samples span."""
    step = max(1, len(samples) // MOST)
    chosen = samples[::step]
    slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(chosen, 2) if t > s]
    return statistics.median(slopes) * (chosen[-1][0] - chosen[0][0]) if slopes else 0.0


class Load:
    """What clients do, one after the other, until they are stopped."""

    def __init__(self, url: str, seed: int) -> None:
        self.url, self.rng = url, random.Random(seed)
        self.client = httpx.Client(base_url=url, timeout=120.0)
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []

    def ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        answer = self.client.request(method, path, **given)
        if answer.status_code >= 500:
            self.wrong.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer

    def run(self, stopping: threading.Event) -> None:
        kinds: list[tuple[int, Callable[[], None]]] = [
            (4, self.search), (2, self.evaluate), (2, self.cancel), (3, self.refused), (2, self.broken_off),
            (3, self.dropped_stream), (4, self.look),
        ]  # fmt: skip
        while not stopping.is_set():
            (act,) = self.rng.choices([a for _, a in kinds], [w for w, _ in kinds])
            try:
                act()
            except httpx.TransportError as e:
                self.wrong.append(f"{act.__name__}: {e!r}")
            self.done[act.__name__] += 1

    def submit(self, name: str, wait: int = 0, **more: Any) -> dict[str, Any]:
        query = {"devices": self.rng.choice((2, 4)), "memory_limit": self.rng.randrange(40 * 10**9, 60 * 10**9)} | more
        headers = {**ONNX, "prefer": f"wait={wait}"}
        found: dict[str, Any] = self.ask(
            "POST", "/v1/plans", params=query, content=MODELS[name], headers=headers
        ).json()
        return found

    def ended(self, job: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = self.ask("GET", f"/v1/jobs/{job}", headers={"prefer": "wait=20"}).json()
            if found.get("status") not in ("queued", "running"):
                return found

    def forget(self, job: dict[str, Any]) -> None:
        self.ask("DELETE", f"/v1/jobs/{job['id']}")
        if job.get("plan"):
            self.ask("DELETE", f"/v1/plans/{job['plan']}")

    def search(self) -> None:
        a, b = (self.ended(self.submit(self.rng.choice(tuple(MODELS)), wait=20)["id"]) for _ in range(2))
        for path in ("artifacts/report.html", "artifacts/torch.zip", "explanation"):
            self.ask("GET", f"/v1/plans/{a['plan']}/{path}", headers={"prefer": "wait=20"})
        self.ask("GET", f"/v1/diffs/{a['plan']}/{b['plan']}", headers={"prefer": "wait=20"})
        self.forget(a)
        self.forget(b)

    def evaluate(self) -> None:
        query = {"strategy": self.rng.choice(("fsdp", "ddp")), "devices": 2, "batch": self.rng.randrange(1, 500) * 2}
        job = self.ask("POST", "/v1/evaluations", params=query, content=MODELS["mlp"], headers=ONNX).json()
        self.forget(self.ended(job["id"]))

    def cancel(self) -> None:
        job = self.submit("gpt_tiny", devices=8, space="whole")["id"]
        time.sleep(self.rng.uniform(0, 2))
        self.ask("POST", f"/v1/jobs/{job}:cancel", headers={"prefer": "wait=20"})
        self.forget(self.ended(job))

    def refused(self) -> None:
        large = bytes(2 << 20)
        self.ask("POST", "/v1/plans?devices=2", content=large, headers=ONNX)
        self.ask("POST", "/v1/plans?devices=none", content=MODELS["mlp"], headers=ONNX)
        self.ask("POST", "/v1/batches", files={"model": MODELS["mlp"], "requests": b'[{"devices": 0}]'})
        self.forget(self.ended(self.ask("POST", "/v1/plans?devices=2", content=b"no model", headers=ONNX).json()["id"]))

    def _connected(self) -> socket.socket:
        url = httpx.URL(self.url)
        return socket.create_connection((url.host, url.port), timeout=30)

    def broken_off(self) -> None:
        """An upload whose client goes away."""
        with self._connected() as there:
            head = "POST /v1/plans?devices=2 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            there.sendall(f"{head}Content-Length: 900000\r\n\r\n".encode() + bytes(300_000))
            time.sleep(self.rng.uniform(0, 0.2))

    def dropped_stream(self) -> None:
        job = self.submit("mlp")["id"]
        for _ in range(5):
            with self._connected() as there:
                there.sendall(f"GET /v1/jobs/{job}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                there.recv(100)
        self.forget(self.ended(job))

    def look(self) -> None:
        for path in ("/v1/jobs?limit=5", "/v1/plans", "/v1/hardware", "/metrics", "/readyz", "/", "/openapi.json"):
            self.ask("GET", path)


def _processes(server: int) -> Iterator[tuple[str, int]]:
    """Those that live as long as the service."""
    yield "server", server
    for k, worker in enumerate(_children_of(server)):
        if "worker" not in _words_of(worker):
            continue
        yield f"worker {k}", worker
        for fork in (p for p in _children_of(worker) if "forkserver" in _words_of(p)):
            yield f"fork server {k}", fork


def _all_below(process: int) -> int:
    return 1 + sum(map(_all_below, _children_of(process)))


def sample(server: int, data: Path, series: Series, at: float) -> None:
    """One of each figure."""

    def note(name: str, value: float) -> None:
        series[name].append((at, value))

    for name, pid in _processes(server):
        with contextlib.suppress(OSError, IndexError, ValueError):
            status = Path(f"/proc/{pid}/status").read_text()
            note(f"{name} MiB", int(status.split("VmRSS:")[1].split()[0]) / 1024)
            note(f"{name} threads", int(status.split("Threads:")[1].split()[0]))
            note(f"{name} descriptors", len(os.listdir(f"/proc/{pid}/fd")))
    note("processes", _all_below(server))
    sizes = {}  # of what is there: folders of children come and go meanwhile
    for folder, inner, files in os.walk(data):
        if Path(folder).parent == data / "scratch":
            note("scratch folders of a worker", len(inner))
        for name in files:
            with contextlib.suppress(OSError):
                sizes[Path(folder, name)] = Path(folder, name).stat().st_size
    note("unfinished files", sum(p.name.startswith(".tmp-") for p in sizes))
    note("blobs", sum("blobs" in p.parts for p in sizes))
    note("disk MiB, cache apart", sum(size for p, size in sizes.items() if "cache" not in p.parts) / 2**20)


def rows(data: Path) -> dict[str, int]:
    store = open_store(data, "", "")
    with store.database.read() as db:
        tables = [
            r[0] for r in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
        ]
        return {t: db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in sorted(tables)}


def leaks(series: Series) -> dict[str, float]:
    """Figures that have grown by more than is noise."""
    out = {}
    for name, samples in series.items():
        allowed = next((a for unit, a in ALLOWED.items() if unit in name and "disk" not in name), None)
        if allowed is not None and (grown := growth(samples[int(len(samples) * WARM) :])) > allowed:
            out[name] = round(grown, 1)
    return out


def table(series: Series) -> str:
    lines = [f"{'':30} {'first':>9} {'third':>9} {'last':>9} {'most':>9} {'growth':>9}"]
    for name, samples in series.items():
        values = [v for _, v in samples]
        third = samples[int(len(samples) * WARM) :]
        figures = (values[0], third[0][1], values[-1], max(values), growth(third))
        lines.append(f"{name[:30]:30} " + " ".join(f"{f:9.1f}" for f in figures))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, help="the service's log")
    options = parser.parse_args()
    series: Series = defaultdict(list)
    began, load_before = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        data = Path(name) / "data"
        log = options.log or Path(name) / "log"
        with served(data, *LIMITS, "--workers", "2", log=log) as service:
            while httpx.get(f"{service.url}/readyz", timeout=120.0).status_code != 200:
                time.sleep(0.2)
            stopping = threading.Event()
            loads = [Load(service.url, options.seed + k) for k in range(options.clients)]
            threads = [threading.Thread(target=load.run, args=(stopping,)) for load in loads]
            for thread in threads:
                thread.start()
            while time.monotonic() - began < 60 * options.minutes:
                sample(service.process.pid, data, series, time.monotonic() - began)
                time.sleep(EVERY_S)
            stopping.set()
            for thread in threads:
                thread.join()
            left = rows(data)
    done = sum((load.done for load in loads), Counter())
    wrong = [w for load in loads for w in load.wrong]
    found = leaks(series)
    print(table(series))
    report = {
        "minutes": round((time.monotonic() - began) / 60, 1), "done": dict(done), "rows_left": left, "leaks": found,
        "wrong": wrong[:20], "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
    }  # fmt: skip
    print(json.dumps(report, indent=1))
    return 1 if found or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
