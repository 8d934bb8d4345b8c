"""`POST /v1/batches`: one model, many requests, all of them or none."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs.shared import draw
from planner.api.jobs.sqlite import SqliteDatabase
from planner.api.jobs.store import Store
from planner.api.limits import Buckets, Rate
from planner.api.rates import SharedBuckets
from tests.service.http import Service, serving

SWEEP = [{"devices": 4}, {"devices": 8}, {"devices": 8, "hardware": "h100", "name": "on-h100"}]


def send(service: Service, requests: object = SWEEP, model: bytes = b"a model", **headers: str) -> Any:
    text = requests if isinstance(requests, str) else json.dumps(requests)
    files: Mapping[str, Any] = {"model": ("net.onnx", model), "requests": (None, text)}
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return service.client.post("/v1/batches", files=files, headers=sent)


def test_a_batch_is_as_many_ordinary_jobs_in_order(service: Service) -> None:
    answer = send(service)
    assert (answer.status_code, answer.headers["retry-after"]) == (202, "1")
    jobs = answer.json()["jobs"]
    assert [(j["options"]["devices"], j["name"]) for j in jobs] == [(4, "net"), (8, "net"), (8, "on-h100")]
    assert {j["kind"] for j in jobs} == {"plan"}
    listed = service.client.get("/v1/jobs").json()["items"]
    assert [j["id"] for j in listed] == [j["id"] for j in jobs][::-1]
    service.work({"plan.json": b"{}"})
    assert service.client.get(f"/v1/jobs/{jobs[0]['id']}").json()["status"] == "succeeded"
    cancelled = service.client.post(f"/v1/jobs/{jobs[1]['id']}:cancel").json()
    assert cancelled["status"] == "cancelled"


def test_an_equal_request_outside_of_the_batch_is_the_same_computation(service: Service) -> None:
    service.planned(query="devices=4&name=net")
    assert [j["status"] for j in send(service).json()["jobs"]] == ["succeeded", "queued", "queued"]


def test_a_batch_that_is_sent_again_with_its_key_is_the_same_jobs(service: Service) -> None:
    first, again = (send(service, idempotency_key="k").json()["jobs"] for _ in range(2))
    assert [j["id"] for j in first] == [j["id"] for j in again]
    for other in (SWEEP[:2], SWEEP[::-1], [*SWEEP, {"devices": 16}]):
        refused = send(service, other, idempotency_key="k")
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:planner:problem:idempotency-key-reused")
    assert len(service.client.get("/v1/jobs").json()["items"]) == 3
    assert service.post(idempotency_key="k").status_code == 202  # the key of a single request is another


def test_the_queue_takes_all_of_a_batch_or_nothing(tmp_path: Path) -> None:
    with serving(tmp_path, queue=4) as s:
        assert send(s).status_code == 202
        refused = send(s, [{"devices": 16}, {"devices": 32}])
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:planner:problem:queue-full")
        assert len(s.client.get("/v1/jobs").json()["items"]) == 3
        assert send(s, [{"devices": 16}]).status_code == 202


def test_the_rate_counts_every_request_of_a_batch(tmp_path: Path) -> None:
    with serving(tmp_path, rate=2.0) as s:
        assert send(s).status_code == 202
        refused = send(s)
        assert (refused.status_code, refused.json()["type"]) == (429, "urn:planner:problem:rate-limited")
        assert int(refused.headers["retry-after"]) >= 1


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_beyond_the_bucket_is_taken_once_that_is_full(tmp_path: Path, shared: bool) -> None:
    async def test() -> None:
        now, database = 0.0, SqliteDatabase(tmp_path / "store.sqlite")
        local, drawn = Buckets(10.0, clock=lambda: now), SharedBuckets(10.0, database)

        async def take(count: int) -> Rate | None:
            return await drawn.take("a", count) if shared else local.take("a", count)

        for count in (1, 99):  # the request itself, and those that it brings
            found = await take(count)
            assert found is not None
            assert not found.wait

    asyncio.run(test())


def test_what_a_shared_bucket_has_stays_there_for_who_has_to_wait(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "store.sqlite")
    assert draw(database, "a", 15, 0.001, 20.0)[0] == 15
    assert draw(database, "a", 19, 0.001, 20.0, 19)[0] == 0
    assert draw(database, "a", 5, 0.001, 20.0, 5)[0] == 5


def test_buckets_that_are_full_again_leave_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    draw(store.database, "login 192.0.2.1", 1, 1.0, 2.0)
    now = time.time()
    for later, rows in ((60.0, 1), (7200.0, 0)):
        monkeypatch.setattr(time, "time", lambda later=later: now + later)
        store.purge(86400.0)
        with store.database.read() as db:
            assert db.execute("SELECT COUNT(*) FROM rates").fetchone()[0] == rows


def test_requests_that_are_longer_than_any_list_are_not_read(service: Service) -> None:
    refused = send(service, " " * (1 << 20) + "[]")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["name"] == "requests"
    assert "1048576 bytes at most" in refused.json()["detail"]


def test_each_request_of_a_batch_may_have_a_webhook(tmp_path: Path) -> None:
    secret = Store(tmp_path).keys.create("team", "")[1]
    with serving(tmp_path, secret, webhook_hosts=("localhost",)) as s:
        jobs = send(s, [{"devices": 4}, {"devices": 8, "webhook": "http://localhost/done"}]).json()["jobs"]
        for job in jobs:
            s.client.post(f"/v1/jobs/{job['id']}:cancel")
        due = s.store.webhooks.take(time.time(), 60.0, 9, 9)
        assert [(w.job, w.url) for w in due] == [(jobs[1]["id"], "http://localhost/done")]
        refused = send(s, [{"devices": 16}, {"devices": 32, "webhook": "http://elsewhere/"}])
        assert (refused.status_code, refused.json()["type"]) == (422, "urn:planner:problem:usage")
        assert len(s.client.get("/v1/jobs").json()["items"]) == 2


@pytest.mark.parametrize(
    ("requests", "name"),
    [
        ("[", "requests"),
        ("{}", "requests"),
        ("[]", "requests"),
        ("[1]", "requests.0"),
        (json.dumps([{"devices": 4}] * 101), "requests"),
        ('[{"devices": 4}, {"devices": "many"}]', "requests.1.devices"),
        ('[{"devices": 4, "devicse": 4}]', "requests.0.devicse"),
        ("[" * 100_000, "requests"),
        ('[{"devices": 1' + "0" * 5000 + "}]", "requests"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_begun(service: Service, requests: str, name: str) -> None:
    refused = send(service, requests)
    assert refused.status_code == 422, refused.text
    assert refused.json()["errors"][0]["name"].startswith(name)
    assert service.client.get("/v1/jobs").json()["items"] == []


def test_options_that_contradict_each_other_name_the_request(service: Service) -> None:
    refused = send(service, [{"devices": 4}, {"devices": 3, "stages": 2}])
    assert (refused.status_code, refused.json()["type"]) == (422, "urn:planner:problem:usage")
    assert refused.json()["detail"].startswith("requests.1: ")
    assert service.client.get("/v1/jobs").json()["items"] == []


def test_a_batch_needs_both_of_its_parts(service: Service) -> None:
    for files in ({"model": b"a model"}, {"requests": json.dumps(SWEEP).encode()}):
        assert service.client.post("/v1/batches", files=files).status_code == 422
    octets = {"content-type": "application/octet-stream"}
    assert service.client.post("/v1/batches", content=b"a model", headers=octets).status_code == 422
