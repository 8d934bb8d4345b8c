"""A store that is another machine's is never asked by the event loop, which would stand still for everybody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs.blobs import Blobs
from planner.api.jobs.keys import MONITOR
from planner.api.jobs.opening import open_blobs
from planner.api.jobs.sqlite import SqliteDatabase
from planner.api.jobs.store import Store
from planner.api.uploads import IN_MEMORY
from tests.service.http import Service, serving


def _beside(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, where no event loop waits for it."""

    def run(*given: Any, **named: Any) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return call(*given, **named)
        raise AssertionError(f"{call.__qualname__} is called by the event loop")

    return run


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    store = Store(tmp_path)
    secret = store.keys.create("team", "")[1]
    monkeypatch.setattr(SqliteDatabase, "remote", True)
    monkeypatch.setattr("planner.api.jobs.store.Blobs", partial(Blobs, remote=True))
    with serving(tmp_path, secret, webhook_hosts=("localhost",), tenant_quota=10**9) as s:
        for name in ("read", "write"):
            monkeypatch.setattr(SqliteDatabase, name, _beside(getattr(SqliteDatabase, name)))
        for name in ("put", "adopt", "read", "open", "remove", "hold", "_holding"):
            monkeypatch.setattr(Blobs, name, _beside(getattr(Blobs, name)))
        yield s


def test_every_kind_of_request_asks_the_store_beside_the_event_loop(remote: Service) -> None:
    monitor = remote.store.keys.create(MONITOR, "")[1]
    session = remote.client.post("/v1/sessions", json={"key": remote.client.headers["authorization"].split()[1]})
    assert session.status_code == 200
    plan = remote.planned(b"{" + b" " * IN_MEMORY + b"}", b"m" * (IN_MEMORY + 1))
    requests = json.dumps([{"devices": 8, "webhook": "http://localhost/"}])
    batch = {"model": ("m.onnx", b"model"), "requests": (None, requests)}
    answers = [
        remote.post(b"a model", "devices=4&webhook=http://localhost/"),
        remote.post(b"a model", "devices=4", idempotency_key="k"),
        remote.post(b"b model", "devices=4", idempotency_key="k"),  # another request: what it brought is removed
        remote.client.post("/v1/batches", files=batch),
        remote.client.post(f"/v1/evaluations?plan={plan}&hardware=h100"),
        *(
            remote.client.get(path, headers={"prefer": "wait=0"})
            for path in (
                *("/v1/jobs", "/v1/plans", f"/v1/plans/{plan}", f"/v1/plans/{plan}/artifacts"),
                *(f"/v1/plans/{plan}/artifacts/{name}" for name in ("model.onnx", "report.html", "torch.zip")),
                *(f"/v1/plans/{plan}/explanation", f"/v1/diffs/{plan}/{plan}", f"/v1/transfers/{plan}/{plan}"),
                *("/v1/sessions", "/v1/hardware", "/readyz"),
            )
        ),
        remote.client.get("/metrics", headers={"authorization": f"Bearer {monitor}"}),
        remote.client.delete("/v1/sessions"),
        remote.client.delete(f"/v1/plans/{plan}"),
    ]
    assert {answer.status_code for answer in answers} <= {200, 202, 204, 422, 503}, [a.text[:200] for a in answers]


def test_a_folder_that_all_hosts_share_is_remote(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.sqlite")
    assert open_blobs(tmp_path, str(tmp_path / "shared"), database).remote
    assert not open_blobs(tmp_path, "", database).remote
