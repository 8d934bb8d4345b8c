"""What requests and workers ask of the database is found by indexes, however many jobs there are: asserted of the query
plans, not of times."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.api.jobs.blobs import Blob
from planner.api.jobs.lanes import LANES
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task

# As many rows as there are tenants, workers or states, and rows that a statement has made itself.
FEW = frozenset(("workers", "codes", "counts", "keys", "turns", "waiting", "ready", "w", "v", "CONSTANT"))
RUNNING = "SCAN tasks USING INDEX tasks_running"  # a row for each task that a worker has in hand
STATES = ("queued", "running", "succeeded", "failed", "cancelled")


# What is sorted is a row for each tenant or status, or the events of one task.
SORTED = ("FROM waiting w", "FROM counts", "FROM events WHERE task")


class Watched:
    """The statements that a store runs, with their values."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.statements: list[str] = []
        self._db: sqlite3.Connection = store.database._connection()

    def __enter__(self) -> Watched:
        self._db.set_trace_callback(self.statements.append)
        return self

    def __exit__(self, *_: object) -> None:
        self._db.set_trace_callback(None)

    def plans(self) -> Iterator[tuple[str, str]]:
        for statement in self.statements:
            if re.match(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)", statement):
                if statement == "SELECT 1 FROM queue LIMIT 1":
                    continue  # the first row will do
                for row in self._db.execute(f"EXPLAIN QUERY PLAN {statement}"):
                    yield statement, row["detail"]

    def scans(self) -> list[str]:
        """Statements that look through a table of which there may be many rows, or sort them."""
        return [
            f"{detail}: {statement}"
            for statement, detail in self.plans()
            if ((found := re.match(r"SCAN (\w+)", detail)) and found[1] not in FEW and detail not in RUNNING)
            or ("TEMP B-TREE" in detail and not any(few in statement for few in SORTED))
        ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "service")
    model = store.blobs.put(b"model")
    for k in range(6):
        store.submit(f"tenant {k % 2}", Task("plan", {"model": model}, {"k": k}, code="c"), name="m")
    return store


def test_the_watch_sees_a_scan(store: Store) -> None:
    with Watched(store) as watched, store.database.read() as db:
        db.execute("SELECT * FROM jobs WHERE name = 'm' ORDER BY fingerprint").fetchall()
    assert len(watched.scans()) == 2


def test_lists_of_jobs_and_plans_look_at_their_page_alone(store: Store) -> None:
    with Watched(store) as watched:
        for status in (None, *STATES):
            for after in (None, "8"):
                store.jobs("tenant 0", status, 50, after)
        store.plans("tenant 0", 50, "8")
        store.plans("tenant 0")
    assert len(watched.statements) > 12
    assert watched.scans() == []
    lists = [(s, detail) for s, detail in watched.plans() if "j.status = " in s and " j " in f"{detail} "]
    assert {detail for _, detail in lists} == {"SEARCH j USING INDEX jobs_status (tenant=? AND status=? AND id<?)"}


def test_work_and_metrics_look_at_what_they_change_alone(store: Store) -> None:
    with Watched(store) as watched:
        for answer in ("finish", "fail", "died", "release"):
            held = store.leases.claim("w", LANES)
            assert held is not None
            store.leases.heartbeat("w", [held], slots=1)
            store.leases.ends_requested([held])
            store.leases.report(held, [("phase", {})], {"gap": 1.0})
            match answer:
                case "finish":
                    digest = store.blobs.put(b"plan")
                    store.leases.finish(held, {"plan.json": Blob(digest, "", 4)}, {}, plan=digest[:32])
                case "fail":
                    store.leases.fail(held, {}, lasting=True)
                case "died":
                    store.leases.died(held, "SIGKILL")
                case "release":
                    store.leases.release(held)
        store.leases.waiting()
        store.leases.workers()
        store.counts()
        digest = store.blobs.put(b"model")
        for k in range(7):
            again = Task("plan", {"model": digest}, {"k": k}, code="c")
            job = store.submit("tenant 2", again, name="m", idempotency=str(k)).job
            store.answered("tenant 2", again)
            store.ensure(again, "tenant 3")
            store.events("tenant 2", job.id)
            store.cancel("tenant 2", job.id)
        store.recover(store.blobs.put(b"plan"))
        store.leases.bury("w")
        store.keys.authenticate("secret")
    assert watched.scans() == []
