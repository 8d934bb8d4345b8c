"""`planner store copy` and `migrate`: what a service has in its folder goes on in a database and a bucket."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs import schema
from planner.api.jobs.lanes import LANES
from planner.api.jobs.opening import open_store
from planner.api.jobs.shared import shared_secret
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.jobs.totals import PURGED, add, totals
from planner.api.pages import own_secret
from planner.cli.main import main
from tests.service.earlier import made_by_version
from tests.service.http import serving
from tests.service.postgres import Server

pytest.importorskip("psycopg", reason="the extra `server` is not installed")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a service that holds a plan, and a job that waits."""
    folder = tmp_path / "data"
    with serving(folder) as s:
        s.planned()
        s.post(b"another model")
    return folder


@pytest.fixture
def shared(postgres_server: Server, bucket_url: str) -> list[str]:
    return ["--store", postgres_server.database(), "--blobs", bucket_url]


def _copied(data: Path, shared: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    status = main(["store", "copy", "--data", str(data), *shared, "--json"])
    said = capsys.readouterr()
    return status, json.loads(said.out or "{}"), said.err


def test_a_store_that_was_copied_is_served_as_before(
    data: Path, shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Store(data)
    _, secret = folder.keys.create("team", "")
    before = [(j.id, j.status, j.plan) for j in folder.jobs("local")]
    status, found, _ = _copied(data, shared, capsys)
    assert (status, found["rows"]["jobs"], found["rows"]["plans"], found["blobs"], found["lost"]) == (0, 2, 1, 4, [])
    store = open_store(tmp_path / "host", shared[1], shared[3])
    assert [(j.id, j.status, j.plan) for j in store.jobs("local")] == before
    assert store.counts() == folder.counts() | {"oldest_s": pytest.approx(folder.counts()["oldest_s"], abs=60)}
    (plan,) = store.plans("local")
    assert store.blobs.read(plan.files["plan.json"].digest) == b'{"a": "plan"}'
    assert store.keys.authenticate(secret) == "team"
    assert shared_secret(store.database) == own_secret(data)
    assert [e.type for e in store.events("local", before[1][0])] == ["queued", "started", "succeeded"]
    held = store.leases.claim("w", LANES)
    assert held is not None
    assert store.blobs.read(held.inputs["model"]) == b"another model"
    assert {j.status for j in store.jobs("local", "running")} == {"running"}  # triggers are on again
    with store.database.write() as db:
        db.execute("DELETE FROM codes")
    made = store.ensure(_artifact(store), "local")
    assert made.id > max(j.task for j in store.jobs("local"))
    store.database.close()


def test_sessions_stay_ended_webhooks_are_owed_and_totals_go_on(
    data: Path, shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Store(data)
    folder.sessions.end("a session", time.time() + 3600)
    ended = folder.jobs("local", "succeeded")[0].id
    folder.webhooks.add(ended, "https://team.example/hook", "secret")
    with folder.database.write() as db:
        add(db, PURGED, "runs", 7)
        totals_before = totals(db)
    assert _copied(data, shared, capsys)[0] == 0
    store = open_store(tmp_path / "host", shared[1], shared[3])
    assert store.sessions.ended("a session")
    with store.database.read() as db:
        assert totals(db) == totals_before
    assert [w.job for w in store.webhooks.take(time.time(), 60.0, 9, 9)] == [ended]
    store.database.close()


def test_every_table_is_copied_follows_or_is_of_the_moment() -> None:
    from planner.api.jobs.postgres import loading

    made = set(re.findall(r"CREATE TABLE (\w+)", schema.TABLES))
    follows, by_itself = {"counts", "waiting"}, {"blobs", "secrets"}
    assert made - set(loading.TABLES) == {"workers", "codes", "rates", "traces"} | follows | by_itself


def _artifact(store: Store) -> Task:
    return Task("artifact", {"plan.json": store.plans("local")[0].files["plan.json"].digest}, {"name": "report.html"})


def test_a_copy_that_broke_off_goes_on_and_one_that_is_there_is_not_overwritten(
    data: Path, shared: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.api.jobs.postgres import loading

    rows = loading.Fingerprint.__eq__
    monkeypatch.setattr(loading.Fingerprint, "__eq__", lambda a, b: a.rows != 1 and rows(a, b))
    status, _, said = _copied(data, shared, capsys)
    assert status == 3
    assert "read back" in said
    monkeypatch.undo()
    for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    status, found, _ = _copied(data, shared, capsys)
    assert (status, found["blobs"], found["there"], found["rows"]["jobs"]) == (0, 0, 4, 2)
    status, _, said = _copied(data, shared, capsys)
    assert status == 3
    assert "there are tasks in it already" in said


def test_a_blob_that_the_folder_has_lost_is_said_and_a_folder_in_use_is_refused(
    data: Path, shared: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(data)
    lost = store.plans("local")[0].files["summary.txt"].digest
    (data / "blobs" / lost[:2] / lost).write_bytes(b"torn")
    store.leases.heartbeat("a worker", [], slots=1)
    status, _, said = _copied(data, shared, capsys)
    assert (status, "stop the service" in said) == (3, True)
    store.leases.leave("a worker")
    status, found, _ = _copied(data, shared, capsys)
    assert (status, found["lost"], found["blobs"]) == (0, [lost], 3)


def test_a_shared_store_is_looked_through_and_left_as_it_is(
    data: Path, shared: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def checked() -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        status = main(["store", "check", "--data", str(tmp_path / "host"), *shared, "--json"])
        return status, json.loads(capsys.readouterr().out)

    assert _copied(data, shared, capsys)[0] == 0
    status, found = checked()
    assert (status, found["sound"], found["jobs"], found["blobs"]) == (0, True, 2, 4)
    store = open_store(tmp_path / "host", shared[1], shared[3])
    blobs: Any = store.blobs
    files = store.plans("local")[0].files
    damaged, missing = files["summary.txt"].digest, files["plan.json"].digest
    blobs.bucket.remove(missing)
    blobs.bucket.remove(damaged)
    blobs.bucket._client.put_object(Bucket=blobs.bucket.name, Key=blobs.bucket.key(damaged), Body=b"torn")
    with store.database.write() as db:
        db.execute("UPDATE counts SET n = n + 1 WHERE what = 'jobs'")
        db.execute("DELETE FROM queue")
    status, found = checked()
    assert (status, found["damaged"], found["missing"]) == (1, [damaged], [missing])
    assert [line.partition(", one")[0] for line in found["database"]] == [
        "there are jobs that were counted wrongly",
        "there are tasks that wait and are in no queue",
    ]
    assert checked() == (status, found)
    store.database.close()


def test_copying_needs_a_folder_a_database_and_a_bucket(data: Path, tmp_path: Path) -> None:
    assert main(["store", "copy", "--data", str(tmp_path / "none")]) == 2
    assert main(["store", "copy", "--data", str(data)]) == 2
    assert not (tmp_path / "none").exists()


def test_tables_are_changed_when_that_is_asked_for(
    tmp_path: Path, postgres_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    import psycopg

    made_by_version(2, tmp_path / "old")
    assert main(["store", "migrate", "--data", str(tmp_path / "old"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"before": 2, "after": 4}
    with sqlite3.connect(tmp_path / "old" / "store.sqlite") as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 4
    assert main(["store", "migrate", "--data", str(tmp_path / "none")]) == 2
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as server:
        server.execute("CREATE DATABASE empty_store")
    url = postgres_server.url("empty_store")
    for expected in ({"before": 0, "after": 4}, {"before": 4, "after": 4}):
        assert main(["store", "migrate", "--store", url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == expected
    with psycopg.connect(url) as changed:
        changed.execute("UPDATE store SET needs = 99, version = 99")
    assert main(["store", "migrate", "--store", url]) == 3
    assert "use the newer program" in capsys.readouterr().err


def test_a_step_between_versions_leaves_the_earlier_program_working(
    tmp_path: Path, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a later version will do it: it opens the tables of before, is asked to add to them, and both go on."""
    from planner.api.jobs.postgres import schema
    from planner.api.jobs.postgres.database import PostgresDatabase

    url = postgres_server.database()
    earlier = Store(tmp_path / "earlier", database=PostgresDatabase(url))
    monkeypatch.setattr(schema, "VERSION", 5)
    added = tuple(f"ALTER TABLE {table} ADD COLUMN note TEXT" for table in ("keys", "tasks", "jobs", "plans"))
    monkeypatch.setattr(schema, "_STEPS", {4: (4, added)})
    task = Task("plan", {"model": earlier.blobs.put(b"model")}, {}, code="code")
    for k in range(8):  # so often that its statements are prepared
        _worked(earlier, replace(task, options={"k": k}))
    later = Store(tmp_path / "later", database=PostgresDatabase(url))  # it changes nothing by itself
    with later.database.read() as db:
        assert db.execute("SELECT version FROM store").fetchone()["version"] == 4
    assert PostgresDatabase.migrate(url) == (4, 5)
    _worked(earlier, replace(task, options={"k": 8}))
    earlier.keys.create("a", "made by the earlier program")
    assert [k.tenant for k in later.keys.list()] == ["a"]
    monkeypatch.undo()
    Store(tmp_path / "earlier again", database=(again := PostgresDatabase(url))).keys.list()
    for store in (earlier, later):
        store.database.close()
    again.close()


def _worked(store: Store, task: Task) -> None:
    job = store.submit("a", task, name="model").job
    held = store.leases.claim("w", LANES)
    assert held is not None
    store.leases.report(held, [("phase", {"phase": "searching"})])
    store.leases.finish(held, {}, {})
    assert store.ensure(task, "a").status == store.state(job.task).status == "succeeded"


def test_a_store_without_traces_takes_requests_and_has_a_place_for_them_once_it_is_migrated(
    tmp_path: Path, postgres_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Version 4 has added them."""
    from planner.api.jobs.postgres.database import PostgresDatabase

    url = postgres_server.database()
    store = Store(tmp_path, database=(database := PostgresDatabase(url)))
    with database.write() as db:
        db.execute("DROP TABLE traces")
        db.execute("UPDATE store SET version = 3, needs = 3")
    task = Task("diff", {"a": store.blobs.put(b"a"), "b": store.blobs.put(b"b")}, {}, code="c")
    job = store.submit("a", task, name="m").job
    for _ in range(2):
        store.traces.add([job.id], "00-1-2-01")
        assert store.traces.of(job.task) == []
    assert len([r for r in caplog.records if "do not join" in r.message]) == 1
    assert PostgresDatabase.migrate(url) == (3, 4)
    store.traces.add([job.id], "00-1-2-01")
    store.traces.add([job.id], "00-3-4-01")  # the same job again, by its key
    assert [(t.job, t.parent) for t in store.traces.of(job.task)] == [(job.id, "00-1-2-01")]
    database.close()
