"""What health checks wait for while one key asks for what takes long, without a pause.

python -m tests.bench.service_flood [--clients 80] [--jobs 300000]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import httpx

from planner.api.jobs.store import Store
from tests.service.process import served
from tests.service.pulse import pulse, quantiles

SECONDS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=80)
    parser.add_argument("--jobs", type=int, default=300_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data:
        key = _filled(Path(data), options.jobs)
        with served(Path(data), "--workers", "1") as service:
            _measure(service.url, key, options.clients)


def _filled(data: Path, jobs: int) -> str:
    """A key, whose tenant has so many jobs that have ended."""
    store = Store(data)
    with store.database.write() as db:
        db.executemany(
            "INSERT INTO tasks (key, current, kind, lane, code, options, status, created_at, used_at, finished_at)"
            " VALUES (?, 0, 'plan', 1, '', '{}', 'succeeded', 1, 1, 1)",
            ((str(k),) for k in range(jobs)),
        )
        db.executemany(
            "INSERT INTO jobs (id, tenant, name, task, created_at, fingerprint) VALUES (?, 'a', 'm', ?, 1, '')",
            ((f"{k:032x}", k + 1) for k in range(jobs)),
        )
    return store.keys.create("a", "")[1]


def _measure(url: str, key: str, clients: int) -> None:
    over, answers, ready = threading.Event(), Counter[int](), []

    def flood() -> None:
        with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
            while not over.is_set():
                answers[client.get("/v1/jobs?status=running").status_code] += 1

    threads = [threading.Thread(target=flood) for _ in range(clients)]
    with pulse(url, 20) as found, httpx.Client(base_url=url, timeout=120) as client:
        for thread in threads:
            thread.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            sent = time.perf_counter()
            client.get("/readyz")
            ready.append(time.perf_counter() - sent)
            time.sleep(0.1)
        over.set()
        for thread in threads:
            thread.join()
    print("/healthz", quantiles([seconds for _, seconds in found["waits"]]))
    print("/readyz ", quantiles(ready))
    print("of the key", dict(answers))


if __name__ == "__main__":
    main()
