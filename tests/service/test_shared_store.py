"""Several replicas of the service and several workers on one store: two servers and three workers, each in a folder of
its own, as on hosts of their own, with a database and a bucket between them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.api.jobs.opening import open_store
from planner.api.jobs.shared import draw, shared_secret
from planner.api.limits import Rate
from planner.api.rates import SharedBuckets
from planner.api.settings import Settings
from planner.api.watch import Changes
from planner.api.workers import Workers
from planner.errors import UsageError
from tests.service.http import ONNX
from tests.service.postgres import Server
from tests.service.process import served

pytest.importorskip("psycopg", reason="the extra `server` is not installed")

GRAPHS = Path(__file__).parents[2] / "sample_graphs"


def _until(what: Callable[[], Any], seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)
    return found


@contextmanager
def _worker(folder: Path, shared: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "planner", "worker", "--data", str(folder)]
    process = subprocess.Popen(command, env=os.environ | shared, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def _ended(c: httpx.Client, job: dict[str, Any]) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = c.get(job["links"]["self"], headers={"prefer": "wait=10"}).json()
        return found if found["finished_at"] is not None else None

    found: dict[str, Any] = _until(ended)
    return found


@pytest.mark.slow
def test_replicas_and_workers_of_several_hosts_are_one_service(
    tmp_path: Path, postgres_server: Server, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_server.database()
    shared = {"PLANNER_STORE": url, "PLANNER_BLOBS": bucket_url}
    for name, value in shared.items():
        monkeypatch.setenv(name, value)
    store = open_store(tmp_path / "test", url, bucket_url)
    _, secret = store.keys.create("team", "")
    bearer = {"authorization": f"Bearer {secret}"}
    with ExitStack() as stack:
        workers = [stack.enter_context(_worker(tmp_path / f"worker {k}", shared)) for k in range(3)]
        replicas = [stack.enter_context(served(tmp_path / f"replica {k}", "--workers", "0")) for k in range(2)]
        a, b = (stack.enter_context(httpx.Client(base_url=r.url, timeout=60)) for r in replicas)
        _until(lambda: len(store.leases.workers()) == 3)
        assert {c.get("/readyz").status_code for c in (a, b)} == {200}

        # What one replica has accepted, the other shows; the cookie of one is good for the other.
        job = a.post("/v1/plans?devices=4", content=(GRAPHS / "mlp.onnx").read_bytes(), headers=ONNX | bearer).json()
        assert a.post("/v1/sessions", json={"key": secret}).json()["tenant"] == "team"
        b.cookies = a.cookies
        done = _ended(b, job)
        assert done["status"] == "succeeded", done
        assert a.get(done["links"]["plan"]).content == b.get(done["links"]["plan"]).content
        with b.stream("GET", f"{job['links']['self']}/events") as events:
            assert "event: succeeded" in events.read().decode()

        # A worker that dies with its host: another one takes the task over when its lease has run out.
        model = (GRAPHS / "gpt2_small.onnx").read_bytes()
        job = b.post("/v1/plans?devices=16&batch=64", content=model, headers=ONNX | bearer).json()
        name = _until(lambda: _holder(store))
        (dead,) = [w for w in workers if f"-{w.pid}-" in name]
        dead.send_signal(signal.SIGKILL)
        done = _ended(a, job)
        assert (done["status"], done["attempts"]) == ("succeeded", 2), done
        assert len([j["id"] for j in a.get("/v1/jobs?status=succeeded").json()["items"]]) == 2
        assert not list(tmp_path.glob("*/blobs")), "models and plans lie in the bucket alone"
    store.database.close()


def _holder(store: Any) -> str | None:
    with store.database.read() as db:
        row = db.execute("SELECT worker FROM tasks WHERE status = 'running'").fetchone()
    return None if row is None else str(row["worker"])


def test_replicas_have_one_secret_and_one_bucket_for_a_tenant(tmp_path: Path, postgres_server: Server) -> None:
    url = postgres_server.database()
    stores = [open_store(tmp_path / str(k), url, str(tmp_path / "blobs")) for k in range(2)]
    first, second = (shared_secret(s.database) for s in stores)
    assert first == second
    assert len(first) == 32
    drawn = [draw(stores[k % 2].database, "a", 3, 0.001, 10.0) for k in range(5)]
    assert [n for n, _ in drawn] == [3, 3, 3, 1, 0]
    assert draw(stores[0].database, "b", 3, 0.001, 10.0)[0] == 3
    for store in stores:
        store.database.close()


def test_replicas_grant_a_tenant_no_more_than_the_bucket_has(tmp_path: Path, postgres_server: Server) -> None:
    store = open_store(tmp_path, postgres_server.database(), str(tmp_path / "blobs"))

    async def ask() -> list[Rate]:
        replicas = [SharedBuckets(20.0, store.database) for _ in range(2)]
        found = [await replicas[k % 2].take("a") for k in range(60)]
        return [rate for rate in found if rate is not None]

    began = time.monotonic()
    rates = asyncio.run(ask())
    granted = sum(not rate.wait for rate in rates)
    assert 36 <= granted <= 40 + 20.0 * (time.monotonic() - began)
    assert all(0 <= rate.left <= 40 and rate.full_in >= 0 for rate in rates)
    assert asyncio.run(SharedBuckets(0.0, store.database).take("a")) is None
    store.database.close()


def test_of_tasks_that_are_waited_for_those_are_looked_at_that_the_database_names() -> None:
    version = 1
    changed: frozenset[int] | None = None
    looked: list[set[int]] = []

    def stamps(tasks: Collection[int]) -> dict[int, int]:
        looked.append(set(tasks))
        return dict.fromkeys(tasks, version)

    async def scenario() -> None:
        nonlocal version, changed
        changes = Changes(lambda: version, stamps, lambda since: changed)
        with changes.watch(7) as seven, changes.watch(8) as eight:
            assert all(await asyncio.gather(seven.wait(60), eight.wait(60)))  # the first look wakes all
            looked.clear()
            seventh, eighth = (asyncio.create_task(watch.wait(60)) for watch in (seven, eight))
            await asyncio.sleep(0.05)
            version, changed = 2, frozenset((7,))
            assert await seventh
            assert not eighth.done()
            assert looked == [{7}]
            version, changed = 3, None  # it may have been any
            assert await eighth
            changes.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_store_is_asked_for_in_words_that_hide_its_password(tmp_path: Path) -> None:
    for store, blobs in (("mysql://u:s3cret@h/d", "/b"), ("postgresql://u:s3cret@h/d", ""), ("", "relative")):
        with pytest.raises(UsageError) as refused:
            open_store(tmp_path, store, blobs)
        assert "s3cret" not in str(refused.value)
    settings = Settings(data=tmp_path, store="postgresql://u:s3cret@h/d", blobs="/b", workers=1)
    workers = Workers(settings)
    assert not any("s3cret" in word for word in workers._command(1, 9))
    assert workers._addresses() == {"PLANNER_STORE": settings.store, "PLANNER_BLOBS": "/b"}
