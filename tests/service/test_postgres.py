"""What holds of the store on PostgreSQL beyond what holds of every store."""

from __future__ import annotations

import dataclasses
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs.blobs import Blob, Blobs
from planner.api.jobs.errors import LeaseLost, StoreBusy, StoreConflict, StoreUnusable
from planner.api.jobs.lanes import LANES
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.turns import Able
from planner.api.jobs.worker import Worker
from tests.service.postgres import Server

pytest.importorskip("psycopg", reason="the extra `server` is not installed")


@pytest.fixture
def url(postgres_server: Server) -> str:
    return postgres_server.database()


@pytest.fixture
def opened(url: str, tmp_path: Path) -> Iterator[Callable[..., Store]]:
    """Opens the store once more, as another process would."""
    from planner.api.jobs.postgres.database import PostgresDatabase

    stores: list[Store] = []

    def open_store(**more: Any) -> Store:
        stores.append(Store(tmp_path / "host", queue=1000, database=PostgresDatabase(url, connections=8, **more)))
        return stores[-1]

    yield open_store
    for store in stores:
        store.database.close()


def task(store: Store, content: str = "model", **options: object) -> Task:
    return Task("plan", {"model": store.blobs.put(content.encode())}, options, code="code")


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What each returns or raises, all begun at once."""
    results: list[Any] = [None] * len(calls)
    start = threading.Barrier(len(calls))

    def run(k: int) -> None:
        start.wait()
        try:
            results[k] = calls[k]()
        except Exception as e:
            results[k] = e

    threads = [threading.Thread(target=run, args=(k,)) for k in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_equal_requests_at_one_moment_are_one_task(opened: Callable[..., Store]) -> None:
    stores = [opened(), opened()]
    for k in range(6):
        found = together(
            *(lambda s=s, t=t, k=k: s.submit(t, task(s, k=k), name="m") for s in stores for t in "abc"),  # type: ignore[misc]
        )
        assert len({f.job.task for f in found}) == 1, found
        assert stores[0].counts()["tasks"]["queued"] == k + 1


def test_one_idempotency_key_at_one_moment_is_one_job(opened: Callable[..., Store]) -> None:
    stores = [opened(), opened()]
    found = together(*(lambda s=s: s.submit("a", task(s), name="m", idempotency="k") for s in stores * 3))  # type: ignore[misc]
    assert len({f.job.id for f in found}) == 1, found
    assert sum(f.created for f in found) == 1


def test_a_tenants_room_is_counted_exactly_however_many_ask_at_once(opened: Callable[..., Store]) -> None:
    store = opened()
    store._joining = dataclasses.replace(store._joining, queue=3)
    found = together(*(lambda k=k: store.submit("a", task(store, k=k), name="m") for k in range(7)))  # type: ignore[misc]
    assert sorted(type(f).__name__ for f in found) == ["QueueFull"] * 4 + ["Submitted"] * 3


def test_workers_that_claim_at_one_moment_have_tasks_of_their_own_and_tenants_take_turns(
    opened: Callable[..., Store],
) -> None:
    stores = [opened(), opened()]
    for k in range(12):
        stores[0].submit("flood", task(stores[0], k=k), name="m")
    for tenant in "abc":
        stores[0].submit(tenant, task(stores[0], tenant), name="m")
    first = together(*(lambda s=s: s.leases.claim("w", LANES) for s in stores * 2))  # type: ignore[misc]
    rest = [stores[1].leases.claim("w", LANES) for _ in range(11)]
    assert len({c.task for c in (*first, *rest) if c is not None}) == 15
    assert {stores[0].blobs.read(c.inputs["model"]) for c in first} == {b"model", b"a", b"b", b"c"}


def test_giving_up_and_claiming_at_one_moment_leave_nothing_half_done(opened: Callable[..., Store]) -> None:
    store = opened()
    for k in range(8):
        job = store.submit("a", task(store, k=k), name="m").job
        held, gone = together(lambda: store.leases.claim("w", LANES), lambda j=job: store.cancel("a", j.id))  # type: ignore[misc]
        with store.database.read() as db:
            waiting = db.execute("SELECT COUNT(*) FROM queue").fetchone()[0]
        assert waiting == 0
        if held is None:
            assert gone.status == "cancelled"
        else:
            assert store.leases.heartbeat("w", [held]).cancelled == {job.task}
            store.leases.fail(held, None, lasting=False, cancelled=True)
        assert store.job("a", job.id).status == "cancelled"
    counts = store.counts()
    assert counts["tasks"]["cancelled"] == counts["jobs"]["ended"] == 8


def test_who_joins_a_task_that_ends_has_its_plan_or_another_task(opened: Callable[..., Store]) -> None:
    stores = [opened(), opened()]
    store = stores[0]
    digest = store.blobs.put(b"plan")
    for k in range(6):
        store.submit("a", task(store, k=k), name="m")
        held = store.leases.claim("w", LANES)
        assert held is not None
        end = {"plan.json": Blob(digest, "application/json", 4)}
        _, joined = together(
            lambda h=held, e=end: store.leases.finish(h, e, {}, plan=digest[:32]),  # type: ignore[misc]
            lambda k=k: stores[1].submit("b", task(stores[1], k=k), name="n").job,  # type: ignore[misc]
        )
        assert (store.job("b", joined.id).status, store.plan("b", digest[:32]).id) == ("succeeded", digest[:32])
        store.forget("b", digest[:32])


def test_whatever_many_do_at_once_every_job_ends_once_and_all_that_is_counted_is_right(
    opened: Callable[..., Store],
) -> None:
    stores = [opened() for _ in range(3)]
    plan = stores[0].blobs.put(b"plan")
    end = {"plan.json": Blob(plan, "application/json", 4)}

    def ask(k: int) -> Callable[[], None]:
        def run() -> None:
            store, chance = stores[k % 3], random.Random(k)
            for _ in range(25):
                job = store.submit(f"t{k % 2}", task(store, k=chance.randrange(8)), name="m").job
                if chance.random() < 0.4:
                    store.cancel(job.tenant, job.id)

        return run

    def work(k: int) -> Callable[[], None]:
        def run() -> None:
            store, chance = stores[k % 3], random.Random(k)
            for _ in range(30):
                held = store.leases.claim(f"w{k}", LANES)
                if held is None:
                    continue
                try:
                    store.leases.report(held, [("phase", {})], {"gap": 0.1})
                    match chance.randrange(5):
                        case 0:
                            store.leases.release(held)
                        case 1:
                            store.leases.fail(held, {}, lasting=chance.random() < 0.5)
                        case 2:
                            store.leases.bury(f"w{k}")
                        case _:
                            store.leases.finish(held, end, {}, plan=plan[:32], shared=chance.random() < 0.5)
                except LeaseLost:
                    pass

        return run

    def purge() -> None:
        for _ in range(5):
            stores[0].purge(3600.0)

    assert together(*(ask(k) for k in range(4)), *(work(k) for k in range(4)), purge) == [None] * 9
    store = stores[0]
    _write(store, "UPDATE queue SET not_before = 0")  # those that have lost several workers pause
    while (held := store.leases.claim("last", LANES)) is not None:
        store.leases.finish(held, end, {}, plan=plan[:32])
    with store.database.read() as db:

        def rows(statement: str) -> list[Any]:
            return db.execute(statement).fetchall()

        assert rows("SELECT task FROM queue") == rows("SELECT tenant FROM waiting") == []
        assert rows("SELECT id FROM tasks WHERE status IN ('queued', 'running')") == []
        assert rows(
            "SELECT j.id FROM jobs j JOIN tasks t ON t.id = j.task"
            " WHERE j.status <> CASE WHEN j.left_at IS NULL THEN t.status ELSE 'cancelled' END"
        ) == []  # fmt: skip
        for table in ("tasks", "jobs"):
            counted = (
                f"SELECT status, SUM(n) AS n FROM counts WHERE what = '{table}' GROUP BY status HAVING SUM(n) <> 0"
            )
            assert sorted(rows(counted)) == sorted(rows(f"SELECT status, COUNT(*) FROM {table} GROUP BY status"))
        ends = "COUNT(*) FILTER (WHERE type IN ('succeeded', 'failed', 'cancelled'))"
        for row in rows(f"SELECT task, COUNT(*) AS n, MAX(seq) AS last, {ends} AS ends FROM events GROUP BY task"):
            assert (row["n"], row["ends"]) == (row["last"], 1)


def test_hosts_whose_clocks_differ_agree_on_leases(
    opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, right = opened(), opened()
    right.submit("a", task(right), name="m")
    held = right.leases.claim("w1", LANES)
    assert held is not None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert ahead.leases.claim("w2", LANES) is None
    assert set(ahead.leases.workers()) == set()
    ahead.leases.heartbeat("w2", [], slots=1)
    monkeypatch.undo()
    assert set(right.leases.workers()) == {"w2"}
    right.leases.report(held, [("phase", {})])


def test_notes_name_the_tasks_that_were_written_to(opened: Callable[..., Store]) -> None:
    waiting, writing = opened(), opened()
    waiting.version()
    until(waiting.database._listener.listening.is_set)  # type: ignore[attr-defined]
    jobs = [writing.submit(t, task(writing, t), name="m").job for t in "ab"]
    until(lambda: {j.task for j in jobs} <= set(waiting.changes(waiting.version() - 2) or ()))
    held = writing.leases.claim("w", LANES)
    assert held is not None

    def heard(write: Callable[[], object]) -> None:
        before = waiting.version()
        write()
        until(lambda: held.task in (waiting.changes(before) or ()))

    heard(lambda: writing.leases.report(held, [("phase", {})]))
    heard(lambda: writing.cancel("a", jobs[0].id))
    heard(lambda: writing.leases.fail(held, None, lasting=False, cancelled=True))
    assert waiting.changes(-10) is None  # too long ago to be known


def test_who_cannot_hear_looks_all_the_same(opened: Callable[..., Store], monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.api.jobs.postgres import listening

    monkeypatch.setattr(listening, "POLL_S", 0.01)
    store = opened()
    store.database._listener._conninfo = "host=/nowhere"  # type: ignore[attr-defined]
    before = store.version()
    until(lambda: store.version() > before + 1)
    assert store.changes(before) is None


def test_a_worker_claims_what_its_code_knows_and_what_nobody_elses_does(opened: Callable[..., Store]) -> None:
    store = opened()
    store.submit("a", task(store, "of other code"), name="m")
    mine, other = Able(frozenset(("plan",)), "mine"), Able(frozenset(("plan",)), "code")
    store.leases.heartbeat("other", [], slots=1, code="code")
    assert store.leases.claim("w", LANES, able=mine) is None
    store.submit("b", Task("artifact", {"plan.json": store.blobs.put(b"p")}, {}, code="mine"), name="m")
    assert store.leases.claim("w", LANES, able=mine) is None  # a kind that it does not know
    held = store.leases.claim("other", LANES, able=other)
    assert held is not None
    store.leases.release(held)
    store.leases.leave("other")
    assert store.leases.claim("w", LANES, able=mine) is not None  # nobody else is left to do it


def test_a_server_that_comes_back_is_gone_on_with(
    opened: Callable[..., Store], postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.api.jobs.postgres import listening

    monkeypatch.setattr(listening, "AGAIN_S", 0.01)
    store = opened()
    job = store.submit("a", task(store), name="m").job
    held = store.leases.claim("w", LANES)
    assert held is not None
    store.version()
    until(store.database._listener.listening.is_set)  # type: ignore[attr-defined]
    postgres_server.restart()
    assert store.job("a", job.id).status == "running"
    assert store.leases.heartbeat("w", [held]).lost == frozenset()
    before = store.version()
    until(store.database._listener.listening.is_set)  # type: ignore[attr-defined]
    store.leases.report(held, [("phase", {})])
    until(lambda: store.version() > before)


def test_errors_are_those_of_the_store(
    opened: Callable[..., Store], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    from planner.api.jobs import database
    from planner.api.jobs.postgres.database import PostgresDatabase

    with pytest.raises(StoreUnusable, match=r"host=/nowhere dbname=x"):
        PostgresDatabase("postgresql://user:s3cret@/x?host=/nowhere")
    with pytest.raises(StoreUnusable, match="none of PostgreSQL") as refused:
        PostgresDatabase("postgresql://user:s3cret@[/x")
    assert "s3cret" not in str(refused.value)
    store = opened()
    store.submit("a", task(store), name="m")
    other = psycopg.connect(url)
    other.execute("UPDATE tasks SET used_at = used_at")
    monkeypatch.setattr(database, "PAUSE_S", 0.0)
    with pytest.raises(StoreBusy):
        _write(store, "SET LOCAL lock_timeout = '10ms'", "SELECT * FROM tasks FOR UPDATE")
    other.close()
    key = "INSERT INTO keys (id, tenant, name, hash, created_at) VALUES ('k', 'a', '', 'h', 0)"
    with pytest.raises(StoreConflict):
        _write(store, key, key)
    with pytest.raises(StoreUnusable):
        _write(store, "SELECT nothing FROM nowhere")
    with pytest.raises(LeaseLost):
        _write(store, "DELETE FROM jobs", error=LeaseLost("what the caller raises is undone and passed on"))
    assert len(store.jobs("a")) == 1


def _write(store: Store, *statements: str, error: Exception | None = None) -> None:
    with store.database.write() as db:
        for statement in statements:
            db.execute(statement)
        if error is not None:
            raise error


def test_a_store_of_another_version_is_left_alone(opened: Callable[..., Store], url: str) -> None:
    import psycopg

    from planner.api.jobs.postgres import schema

    store = opened()
    with psycopg.connect(url) as db:
        db.execute("UPDATE store SET version = 99, needs = %s", (schema.VERSION,))
    opened()  # a newer program has added to it what this one does not need to know
    with psycopg.connect(url) as db:
        db.execute("UPDATE store SET needs = 99")
    with pytest.raises(StoreUnusable, match="use the newer program"):
        opened()
    with psycopg.connect(url) as db:
        db.execute("UPDATE store SET version = 2, needs = 2")
    with pytest.raises(StoreUnusable, match="planner store migrate"):
        opened()
    assert store.jobs("a") == []


def test_lists_look_at_their_page_alone(opened: Callable[..., Store]) -> None:
    from planner.api.jobs.rows import JOB

    store = opened()
    _write(
        store,
        "INSERT INTO tasks (id, key, current, kind, lane, code, options, status, created_at, used_at)"
        " SELECT g, g::text, 1, 'plan', 1, 'c', '{}', 'succeeded', g, g FROM generate_series(1, 6000) g",
        "INSERT INTO jobs (id, tenant, name, task, created_at, fingerprint)"
        " SELECT lpad(g::text, 32, '0'), 'a', 'm', g, g, '' FROM generate_series(1, 6000) g",
        "ANALYZE",
    )
    with store.database.read() as db:
        for status in ("queued", "succeeded"):
            of_status = f"j.tenant = 'a' AND j.status = '{status}' AND j.id < '~' ORDER BY j.id DESC LIMIT 50"
            plan = db.execute(f"EXPLAIN {JOB} WHERE {of_status}").fetchall()
            text = "\n".join(str(row[0]) for row in plan)
            assert "Index Scan Backward using jobs_" in text, text
            assert not any(word in text for word in ("Seq Scan on jobs", "Seq Scan on tasks", "Sort")), text
    assert store.counts()["jobs"] == {"queued": 0, "running": 0, "ended": 6000}


def test_a_clock_of_the_database_that_is_ahead_removes_nothing_and_puts_no_webhook_off(
    opened: Callable[..., Store],
) -> None:
    store = opened()
    database: Any = store.database
    job = store.submit("a", task(store), name="m").job.id
    held = store.leases.claim("w", LANES)
    assert held is not None
    store.leases.finish(held, {}, {})
    store.webhooks.add(job, "https://a.example/", "secret")
    worker = Worker(store, retention_s=30 * 86400.0)
    worker.purge()
    right, database.now = database.now, f"SELECT {time.time() + 40 * 86400.0!r}::float8"
    worker.purge()
    assert [j.id for j in store.jobs("a")] == [job]
    (due,) = store.webhooks.take(store.now(), 60.0, 9, 9)
    assert due.job == job
    store.webhooks.again(due, 60.0)
    assert store.webhooks.take(store.now(), 60.0, 9, 9) == []
    database.now = right
    assert [w.tries for w in store.webhooks.take(store.now(), 60.0, 9, 9)] == [1]


def test_a_process_that_stood_still_within_a_transaction_is_told_to_try_again(url: str) -> None:
    from planner.api.jobs.postgres.database import PostgresDatabase

    database = PostgresDatabase(f"{url}&options=-c%20idle_in_transaction_session_timeout%3D50ms")

    def stand_still() -> None:
        with database.write() as db:
            time.sleep(0.3)
            db.execute("SELECT 1")

    with pytest.raises(StoreBusy):
        stand_still()
    with database.read() as db:
        assert db.execute("SELECT 1").fetchone()[0] == 1
    database.close()


def test_what_one_host_discards_in_a_shared_folder_another_may_be_about_to_name(opened: Callable[..., Store]) -> None:
    refusing, accepting = opened(), opened()
    refused, accepted = task(refusing), task(accepting)
    refusing.discard(refused.inputs["model"], lambda _: False)
    accepting.submit("a", accepted, name="m")
    unwanted = refusing.blobs.put(b"unwanted")
    refusing.discard(unwanted, lambda _: False)
    os.utime(Blobs(refusing.folder / "blobs").path(unwanted), (0, 0))
    assert refusing.purge(3600.0).blobs == 1
    assert (accepted.inputs["model"] in refusing.blobs, unwanted in refusing.blobs) == (True, False)


def test_a_server_that_only_reads_is_not_ready(url: str, tmp_path: Path) -> None:
    from planner.api.jobs.postgres.database import PostgresDatabase

    for options, ready in (("", True), ("&options=-c%20default_transaction_read_only%3Don", False)):
        store = Store(tmp_path / "host", database=PostgresDatabase(url + options))
        if ready:
            store.expect_writable()
            store.expect_writable()
        else:
            with pytest.raises(StoreBusy, match="read-only"):
                store.expect_writable()
        store.database.close()


def test_who_looks_at_all_rows_may_take_longer_than_a_request(opened: Callable[..., Store]) -> None:
    database = opened().database
    limits = []
    for patient in (False, True):
        with database.read(patient=patient) as db:
            limits.append(db.execute("SELECT current_setting('statement_timeout')").fetchone()[0])
    assert limits == ["30s", "0"]


def test_a_pooler_that_stands_in_between_is_named() -> None:
    psycopg = pytest.importorskip("psycopg")
    from planner.api.jobs.postgres.faults import store_error

    refused = psycopg.OperationalError("connection failed: FATAL:  unsupported startup parameter: options")
    forgotten = psycopg.errors.InvalidSqlStatementName('prepared statement "_pg3_12" does not exist')
    for error in (refused, forgotten):
        found = store_error("host=h", error)
        assert isinstance(found, StoreUnusable)
        assert "a pooler stands between" in str(found)
