"""Events of a job as they happen, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn

from planner.api import service
from planner.api.app import create_app
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Task
from planner.api.routes import jobs as routes
from planner.api.settings import Settings
from planner.api.watch import Changes
from planner.api.wire import Wire
from tests.service.http import ONNX, Service

URL = "/v1/plans?devices=4"


class Running(Service):
    """A service behind a socket; `stop` is what a signal does."""

    def __init__(self, folder: Path) -> None:
        settings = Settings(data=folder, heartbeat=0.05)
        self.store = Store(folder)
        self.app = create_app(settings, self.store)
        self.server = uvicorn.Server(uvicorn.Config(self.app, http=Wire, port=0, log_config=None))
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.005)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20)

    def stop(self) -> None:
        self.app.state.service.changes.stop()
        self.server.should_exit = True
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    found = Running(tmp_path)
    yield found
    found.http.close()
    found.stop()


def _events(lines: Iterator[str]) -> Iterator[dict[str, str]]:
    event: dict[str, str] = {}
    for line in lines:
        if not line and "event" in event:
            yield event
        if not line:
            event = {}
        else:
            name, _, value = line.partition(": ")
            event[name or "comment"] = value


def test_events_come_as_they_happen_and_end_with_the_job(running: Running) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    with running.http.stream("GET", job["links"]["events"]) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert "content-encoding" not in answer.headers
        events = _events(answer.iter_lines())
        assert next(events)["event"] == "queued"
        claim = running.claim()
        assert next(events)["event"] == "started"
        running.store.leases.report(claim, [("progress", {"gap": 0.5})], {"gap": 0.5})
        progress = next(events)
        assert (progress["event"], json.loads(progress["data"])["gap"]) == ("progress", 0.5)
        running.store.leases.fail(claim, {"type": "x"}, lasting=False)
        last = next(events)
        assert last["event"] == "failed"
        assert next(events, None) is None
    assert running.http.head(job["links"]["events"]).headers["content-type"].startswith("text/event-stream")
    again = running.http.get(job["links"]["events"], headers={"last-event-id": progress["id"]})
    assert [e["event"] for e in _events(iter(again.text.splitlines()))] == ["failed"]
    assert running.http.get(job["links"]["events"], headers={"last-event-id": last["id"]}).status_code == 204
    for odd in ("x", "-1", "9" * 40):
        assert running.http.get(job["links"]["events"], headers={"last-event-id": odd}).status_code in (200, 204)


def test_a_silent_stream_shows_that_it_lives(running: Running) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    with running.http.stream("GET", job["links"]["events"]) as answer:
        assert any(line == ": still here" for line in answer.iter_lines())


def test_streams_and_waiting_requests_end_when_the_server_stops(running: Running) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    waited: list[httpx.Response] = []
    wait = {"prefer": "wait=60"}
    waiting = threading.Thread(target=lambda: waited.append(running.http.get(job["links"]["self"], headers=wait)))
    waiting.start()
    with running.http.stream("GET", job["links"]["events"]) as answer:
        lines = answer.iter_lines()
        next(lines)
        time.sleep(0.1)
        running.app.state.service.changes.stop()
        running.server.should_exit = True
        assert list(lines)[-1] in ("", ": still here")
    waiting.join(5)
    assert waited[0].json()["status"] == "queued"


def test_only_those_wake_whose_task_has_changed() -> None:
    version, stamps, looks = 0, {1: 0, 2: 0}, 0

    def stamps_of(tasks: Collection[int]) -> dict[int, int]:
        nonlocal looks
        looks += 1
        return {t: stamps[t] for t in tasks if t in stamps}

    async def woken(wait: asyncio.Task[bool]) -> bool:
        await asyncio.wait([wait], timeout=0.1)
        return wait.done()

    async def scenario() -> None:
        nonlocal version
        changes = Changes(lambda: version, stamps_of)
        with changes.watch(1) as one, changes.watch(1) as same, changes.watch(2) as two:
            for watch in (one, same, two):
                assert await watch.wait(60)  # the first look wakes all: they may have read before it
            waits = [asyncio.create_task(w.wait(60)) for w in (one, same, two)]
            version += 1  # of something else
            assert not await woken(waits[0])
            stamps[1], version = 1, 2
            await asyncio.gather(*waits[:2])
            assert not await woken(waits[2])
            before = looks
            assert not await one.wait(0.05)  # nothing changed
            assert looks == before
            with changes.watch(1) as late:
                stamps[1], version = 2, 3  # before it waits
                assert await late.wait(60)
            stamps[2], version = 1, 4
            assert await waits[2]
            last = asyncio.create_task(two.wait(60))
            await woken(last)
            changes.stop()
            await last
        assert not changes._watches
        assert not changes._seen

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_whoever_waits_meets_the_error_of_a_store_that_cannot_be_looked_at() -> None:
    def broken(tasks: Collection[int]) -> dict[int, int]:
        raise RuntimeError("no store")

    async def scenario() -> None:
        changes = Changes(lambda: 0, broken)
        with changes.watch(1) as one:
            assert await one.wait(60)
            assert await one.wait(60)
            changes.stop()

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_stamp_differs_once_state_events_or_jobs_of_a_task_have_changed(service: Service) -> None:
    store, url = service.store, service.post().json()["links"]["self"]
    task = store.job("local", url.rpartition("/")[2]).task
    seen = [store.stamps([task, 10**9])]
    claim = service.claim()
    seen.append(store.stamps([task]))
    store.leases.heartbeat("test", [claim])
    assert store.stamps([task]) == seen[-1]
    store.leases.report(claim, [("message", {})], {})
    seen.append(store.stamps([task]))
    other = store.submit("other", Task("plan", dict(claim.inputs), dict(claim.options)), name="m")
    assert other.job.task == task
    assert store.stamps([task]) == seen[-1]
    store.cancel("local", url.rpartition("/")[2])
    seen.append(store.stamps([task]))
    store.cancel("other", other.job.id)
    seen.append(store.stamps([task]))
    store.leases.fail(claim, None, lasting=False, cancelled=True)
    seen.append(store.stamps([task]))
    assert len({s[task] for s in seen}) == len(seen)
    assert all(list(s) == [task] for s in seen)


def test_what_is_no_request_at_all_is_refused_by_a_problem(running: Running) -> None:
    url = running.http.base_url
    for sent in (b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\na b: c\r\n\r\n"):
        with socket.create_connection((url.host, url.port or 0), timeout=10) as wire:
            wire.sendall(sent)
            answer = b"".join(iter(lambda: wire.recv(4096), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 400 ")
        assert b"application/problem+json" in head
        assert json.loads(body)["type"] == "urn:planner:problem:bad-request"


def test_a_stream_ends_when_its_key_is_revoked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEY_S", 0.1)
    store = Store(tmp_path)
    key, secret = store.keys.create("team", "")
    running = Running(tmp_path)
    try:
        running.http.headers["authorization"] = f"Bearer {secret}"
        job = running.http.post(URL, content=b"m", headers=ONNX).json()
        with running.http.stream("GET", job["links"]["events"]) as answer:
            lines = answer.iter_lines()
            next(lines)
            store.keys.revoke(key)
            assert list(lines)  # it ends, long before it would
        assert running.http.get(job["links"]["events"]).status_code == 401
    finally:
        running.http.close()
        running.stop()


def test_head_of_a_stream_is_not_a_stream(running: Running) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    answer = running.http.head(job["links"]["events"], timeout=2.0)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert not running.app.state.service.streams
    assert 'method="HEAD",route="/v1/jobs/{job_id}/events"' in running.http.get("/metrics").text


def test_streams_of_one_moment_are_no_more_than_a_tenant_may_have(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "STREAMS", 2)
    events = running.http.post(URL, content=b"m", headers=ONNX).json()["links"]["events"]

    async def opened() -> list[int]:
        async with (
            httpx.AsyncClient(base_url=running.http.base_url, timeout=20) as client,
            asyncio.TaskGroup() as group,
        ):
            statuses: list[int] = []

            async def one() -> None:
                async with client.stream("GET", events) as answer:
                    statuses.append(answer.status_code)
                    while len(statuses) < 12:
                        await asyncio.sleep(0.01)

            for _ in range(12):
                group.create_task(one())
        return statuses

    assert sorted(asyncio.run(opened())) == [200] * 2 + [429] * 10
    until = time.monotonic() + 10
    while running.app.state.service.streams:
        assert time.monotonic() < until, "streams that have ended are counted"
        time.sleep(0.01)


def test_so_many_requests_of_a_tenant_wait_and_more_are_told_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAITS", 2)
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    wait = {"prefer": "wait=20"}
    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(running.http.get(job["links"]["self"], headers=wait)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    waiting = running.app.state.service.waiting
    while waiting["local"] < 2:
        time.sleep(0.005)
    began = time.monotonic()
    told = running.http.get(job["links"]["self"], headers=wait)
    assert told.json()["status"] == "queued"
    assert "preference-applied" not in told.headers
    assert time.monotonic() - began < 10
    running.work({"plan.json": b"{}"})
    for thread in threads:
        thread.join()
    assert [a.json()["status"] for a in answers] == ["succeeded", "succeeded"]
    assert not waiting


def test_long_headers_of_streams_are_not_kept(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "KEY_S", 0.05)
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    with running.http.stream("GET", job["links"]["events"], headers={"cookie": f"a={'x' * 50_000}"}) as answer:
        events = _events(answer.iter_lines())
        assert next(events)["event"] == "queued"
        shown = running.app.state.service.shown
        while not shown:
            time.sleep(0.01)
        assert max(map(len, shown)) < 100
        running.store.leases.fail(running.claim(), {"type": "x"}, lasting=False)
        assert [e["event"] for e in events if e["event"]] == ["started", "failed"]


def test_the_stream_of_a_job_that_is_anothers_by_now_ends(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    with running.http.stream("GET", job["links"]["events"]) as answer:
        events = _events(answer.iter_lines())
        assert next(events)["event"] == "queued"
        with running.store.database.write() as db:
            db.execute("UPDATE jobs SET tenant = 'other'")
        running.store.leases.fail(running.claim(), {"type": "x"}, lasting=False)
        assert not [e for e in events if e["event"]]
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_an_id_of_no_event_of_the_job_brings_all_events_and_the_stream_ends(running: Running) -> None:
    job = running.http.post(URL, content=b"m", headers=ONNX).json()
    with running.http.stream("GET", job["links"]["events"], headers={"last-event-id": "77"}) as answer:
        events = _events(answer.iter_lines())
        assert next(events)["event"] == "queued"
        running.store.leases.fail(running.claim(), {"type": "x"}, lasting=False)
        assert [e["event"] for e in events if e["event"]] == ["started", "failed"]
