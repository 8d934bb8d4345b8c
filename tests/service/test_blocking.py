"""No tenant keeps the threads that all share: each has a part of them, in turns."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.api.app import create_app
from planner.api.blocking import EACH, WAITING, Blocking
from planner.api.errors import Problem
from planner.api.jobs.keys import MONITOR
from planner.api.jobs.records import JobRecord
from planner.api.jobs.store import Store
from planner.api.settings import Settings


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))  # type: ignore[arg-type]


async def _settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_one_tenant_has_a_part_of_the_threads_and_the_others_the_rest() -> None:
    async def test() -> None:
        blocking, gate = Blocking(threads=4, each=2), threading.Event()
        held = [asyncio.create_task(blocking.run("a", gate.wait)) for _ in range(10)]
        await _settled()
        assert await blocking.run("b", lambda: "done") == "done"
        gate.set()
        assert await asyncio.gather(*held) == [True] * 10

    _run(test)


def test_tenants_that_wait_have_threads_in_turns() -> None:
    async def test() -> None:
        blocking, gate = Blocking(threads=1, each=1), threading.Event()
        order: list[str] = []
        first = asyncio.create_task(blocking.run("a", gate.wait))
        await _settled()
        rest = [asyncio.create_task(blocking.run(t, order.append, t)) for t in "aaabbc"]
        await _settled()
        gate.set()
        await asyncio.gather(first, *rest)
        assert order == ["a", "b", "c", "a", "b", "a"]

    _run(test)


def test_too_many_of_one_tenant_are_told_to_come_back() -> None:
    async def test() -> None:
        blocking, gate = Blocking(threads=4, each=1, waiting=2), threading.Event()
        held = [asyncio.create_task(blocking.run("a", gate.wait)) for _ in range(3)]
        await _settled()
        with pytest.raises(Problem) as refused:
            await blocking.run("a", gate.wait)
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
        assert await blocking.run("b", lambda: 1) == 1
        gate.set()
        await asyncio.gather(*held)
        assert await blocking.run("a", lambda: 2) == 2

    _run(test)


def test_a_caller_that_has_gone_gives_its_turn_back_and_its_thread_once_that_is_free() -> None:
    async def test() -> None:
        blocking, gate = Blocking(threads=1, each=1), threading.Event()
        running = asyncio.create_task(blocking.run("a", gate.wait))
        await _settled()
        waiting = [asyncio.create_task(blocking.run(t, lambda: None)) for t in "ab"]
        await _settled()
        for task in (running, waiting[0]):
            task.cancel()
        await _settled()
        assert not waiting[1].done()  # the thread is busy still
        gate.set()
        await waiting[1]
        assert await blocking.run("a", lambda: 3) == 3

    _run(test)


def test_a_caller_that_goes_as_a_thread_becomes_free_ends_as_one_that_has_gone() -> None:
    async def test() -> None:
        blocking, gate = Blocking(threads=1, each=1), threading.Event()
        running = asyncio.create_task(blocking.run("a", gate.wait))
        await _settled()
        waiting = asyncio.create_task(blocking.run("a", lambda: None))
        await _settled()
        waiting.cancel()
        blocking._end("a")  # in the moment between the two
        assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
        blocking._begin("a")
        gate.set()
        await running
        assert await blocking.run("a", lambda: 3) == 3

    _run(test)


def test_errors_come_back_as_they_are() -> None:
    async def test() -> None:
        blocking = Blocking()
        with pytest.raises(ZeroDivisionError):
            await blocking.run("a", lambda: 1 / 0)

    _run(test)


def test_one_key_stalls_neither_health_checks_nor_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    secrets = {t: store.keys.create(t, "")[1] for t in "ab"}
    monitor = store.keys.create(MONITOR, "")[1]
    store.leases.heartbeat("w", [], slots=1)
    gate, began = threading.Event(), threading.Semaphore(0)

    def jobs(self: Store, tenant: str, *_: Any) -> list[JobRecord]:
        if tenant == "a":
            began.release()
            gate.wait(20)
        return []

    monkeypatch.setattr(Store, "jobs", jobs)
    app = create_app(Settings(data=tmp_path, rate=0), store)

    async def test() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:

            def list_jobs(tenant: str) -> Awaitable[httpx.Response]:
                return client.get("/v1/jobs", headers={"authorization": f"Bearer {secrets[tenant]}"})

            flood = [asyncio.ensure_future(list_jobs("a")) for _ in range(EACH + WAITING + 5)]
            await asyncio.to_thread(lambda: [began.acquire(timeout=10) for _ in range(EACH)])
            try:
                for path in ("/healthz", "/readyz", "/metrics"):
                    key = {"authorization": f"Bearer {monitor}"} if path == "/metrics" else {}
                    assert (await client.get(path, headers=key)).status_code == 200
                assert (await list_jobs("b")).status_code == 200
                assert not began.acquire(blocking=False)  # no more at a time than a tenant may have
            finally:
                gate.set()
            answers = await asyncio.gather(*flood)
            refused = [r for r in answers if r.status_code == 429]
            assert len(refused) == 5
            assert {r.status_code for r in answers} == {200, 429}
            assert {r.headers["retry-after"] for r in refused} == {"1"}
            assert {r.json()["type"] for r in refused} == {"urn:planner:problem:rate-limited"}

    _run(test)
