"""How long lists, claims and metrics take in a store of a million jobs: `python -m tests.bench.store_size`.

The rows are written by the database itself.  A fifth of the jobs belongs to one tenant and a thousand tenants have the
rest; each of those has ten tasks that wait.  `--store postgresql://…`: an empty database; without it, SQLite.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from planner.api.jobs.opening import open_store
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import KINDS, Task, code_digest
from planner.api.jobs.turns import Able

TENANTS = 1000
WAITING = 10  # tasks of each tenant
BIG = "tenant-big"
_NUMBERS = "WITH RECURSIVE n (k) AS (SELECT CAST(? AS BIGINT) UNION ALL SELECT k + 1 FROM n WHERE k < ?)"
_ENDED = "CASE WHEN k % 50 = 0 THEN 'failed' WHEN k % 70 = 0 THEN 'cancelled' ELSE 'succeeded' END"
_TASKS = """
INSERT INTO tasks (id, key, current, kind, lane, code, options, status, created_at, started_at, finished_at, used_at)
{numbers} SELECT k, 'key ' || k, 1, 'plan', 1, 'c', '{{}}', {status}, k, k, k, k FROM n
"""
_JOBS = """
INSERT INTO jobs (id, tenant, name, task, created_at, fingerprint)
{numbers} SELECT SUBSTR('{zeros}', 1, 32 - LENGTH(CAST(k AS TEXT))) || k, {tenant}, 'm', k, k, '' FROM n
"""
_EVENTS = "INSERT INTO events (task, seq, type, data, at) {numbers} SELECT k, 1, 'queued', '{{}}', k FROM n"
_QUEUE = "INSERT INTO queue (lane, tenant, task, not_before) {numbers} SELECT 1, {tenant}, k, 0 FROM n"


def fill(store: Store, jobs: int, batch: int = 25_000) -> None:
    one = f"'tenant-' || (k % {TENANTS})"
    for first in range(1, jobs + 1, batch):
        last = min(jobs, first + batch - 1)
        _insert(
            store, (_TASKS, _JOBS, _EVENTS), first, last, _ENDED, f"CASE WHEN k % 5 = 0 THEN '{BIG}' ELSE {one} END"
        )
    _insert(store, (_TASKS, _JOBS, _EVENTS, _QUEUE), jobs + 1, jobs + WAITING * TENANTS, "'queued'", one)
    if store.database.remote:
        with store.database.write() as db:
            db.execute("SET LOCAL statement_timeout = 0")
            db.execute("SELECT setval(pg_get_serial_sequence('tasks', 'id'), (SELECT MAX(id) FROM tasks))")
            db.execute("ANALYZE")


def _insert(store: Store, statements: Sequence[str], first: int, last: int, status: str, tenant: str) -> None:
    with store.database.write(durable=False) as db:
        for statement in statements:
            text = statement.format(numbers=_NUMBERS, status=status, tenant=tenant, zeros="0" * 32)
            db.execute(text, (first, last))


def measured(name: str, call: Callable[[int], object], times: int) -> None:
    took = []
    for k in range(times):
        began = time.perf_counter()
        call(k)
        took.append(1000 * (time.perf_counter() - began))
    took.sort()
    print(
        f"{name:34} p50 {statistics.median(took):7.2f}  p99 {took[int(0.99 * len(took))]:7.2f}  max {took[-1]:7.2f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=300)
    parser.add_argument("--store", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        blobs = f"{folder}/blobs" if options.store else ""
        store = open_store(Path(folder), options.store, blobs, queue=10**9)
        began = time.perf_counter()
        fill(store, options.jobs)
        print(f"filled in {time.perf_counter() - began:.0f} s: {store.counts()['jobs']}")
        middle = f"{options.jobs // 2:032d}"
        for status in (None, "queued", "running", "succeeded", "failed", "cancelled"):
            measured(f"jobs, {status or 'any'}", lambda _, s=status: store.jobs(BIG, s), options.times)
        measured("jobs, failed, from the middle", lambda _: store.jobs(BIG, "failed", after=middle), options.times)
        measured("jobs, queued, of a small tenant", lambda k: store.jobs(f"tenant-{k % 1000}", "queued"), options.times)
        measured("plans", lambda _: store.plans(BIG), options.times)
        measured("metrics", lambda _: store.counts(), options.times)
        measured("job", lambda k: store.job(BIG, f"{5 * k + 5:032d}"), options.times)
        able = Able(frozenset(KINDS), code_digest())
        measured("claim", lambda _: store.leases.claim("w", (0, 1), 600.0, able=able), options.times)
        measured("jobs, running", lambda k: store.jobs(f"tenant-{k % 1000}", "running"), options.times)
        model = store.blobs.put(b"model")
        measured("submit", lambda k: store.submit("new", Task("plan", {"model": model}, {"n": k}), name="m"), 100)
        store.database.close()


if __name__ == "__main__":
    main()
