"""What holds for every request: problems, ids, headers, hosts, origins, sizes, rates."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from planner.api import service as service_module
from planner.api.errors import PROBLEMS, Problem
from planner.api.limits import Buckets, limited
from planner.api.logs import JsonLines
from planner.api.routes import routers
from planner.api.settings import Settings
from planner.cost_models import profile_names
from tests.service.http import ONNX, Service, serving


def _is_problem(answer: Any, status: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert (answer.status_code, found["status"], found["type"]) == (status, status, f"urn:planner:problem:{name}")
    assert found["title"] == PROBLEMS[name].title
    assert found["detail"]
    assert found["instance"] == f"urn:planner:request:{answer.headers['x-request-id']}"
    return found


def test_every_refusal_is_a_problem_with_its_type(service: Service) -> None:
    c = service.client
    _is_problem(c.get("/nothing"), 404, "not-found")
    answer = c.put("/v1/plans")
    _is_problem(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    answer = c.post("/v1/plans?devices=4", content=b"x", headers={"content-type": "text/plain"})
    assert _is_problem(answer, 415, "unsupported-media-type")["expected"]
    _is_problem(service.post(b""), 422, "validation")
    _is_problem(c.get("/v1/jobs?cursor=abc"), 400, "cursor-invalid")
    _is_problem(c.get("/v1/jobs/none"), 404, "not-found")
    _is_problem(c.delete("/v1/plans/none"), 404, "not-found")
    _is_problem(c.get("/v1/hardware/../../etc/passwd"), 404, "not-found")


def test_every_wrong_field_is_named(service: Service) -> None:
    found = _is_problem(service.post(query="devices=0&solver=magic&pin=&deviecs=3"), 422, "validation")
    assert {(e["in"], e["name"]) for e in found["errors"]} == {
        ("query", name) for name in ("devices", "solver", "pin.0", "deviecs")
    }
    assert _is_problem(service.post(query=""), 422, "validation")["errors"][0]["name"] == "devices"


@pytest.mark.parametrize(
    "query",
    [
        "devices=10&stages=3",
        "devices=4&strategy=fsdp&stages=2",
        "devices=4&memory_limit=0",
        "devices=4&bind=n%3D1&bind=n%3D2",
        "devices=4&hardware=/etc/passwd",
    ],
)
def test_options_that_contradict_each_other_are_refused_at_once(service: Service, query: str) -> None:
    _is_problem(service.post(query=query), 422, "usage")


def test_a_fault_is_a_problem_that_tells_nothing_of_the_inside(service: Service, caplog: Any) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("secret detail")

    service.client.app.state.service.store.jobs = broken  # type: ignore[attr-defined]
    answer = service.client.get("/v1/jobs")
    found = _is_problem(answer, 500, "internal")
    assert "secret" not in answer.text
    record = next(r for r in caplog.records if r.getMessage() == "fault")
    assert found["instance"].endswith(record.fields["request_id"])


def test_a_sane_request_id_is_kept_and_another_is_not(service: Service) -> None:
    c = service.client
    assert c.get("/healthz", headers={"x-request-id": "job-7.a"}).headers["x-request-id"] == "job-7.a"
    for bad in ("a b", "x" * 65, "", 'a"b'):
        assert c.get("/healthz", headers={"x-request-id": bad}).headers["x-request-id"] != bad


def test_a_request_is_one_json_line(service: Service, caplog: Any) -> None:
    with caplog.at_level(logging.INFO, "planner.service"):
        service.client.get("/v1/jobs", headers={"x-request-id": "abc"})
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert (line["request_id"], line["path"], line["status"], line["tenant"]) == ("abc", "/v1/jobs", 200, "local")


def test_answers_carry_what_browsers_need_to_be_careful(service: Service) -> None:
    headers = service.client.get("/healthz").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_head_is_get_without_the_body(service: Service) -> None:
    got, headed = service.client.get("/v1/hardware"), service.client.head("/v1/hardware")
    assert headed.content == b""
    for name in ("content-length", "etag", "content-type"):
        assert got.headers[name] == headed.headers[name]


def test_a_name_that_was_rebound_to_this_machine_is_refused(service: Service, tmp_path: Path) -> None:
    answer = service.client.get("/v1/jobs", headers={"host": "evil.example:8080"})
    _is_problem(answer, 421, "host-unknown")
    for host in ("localhost", "127.0.0.1:9", "[::1]:8080"):
        assert service.client.get("/v1/jobs", headers={"host": host}).status_code == 200
    with serving(tmp_path / "named", names=("planner.example",)) as named:
        assert named.client.get("/healthz", headers={"host": "planner.example"}).status_code == 200
    with serving(tmp_path / "another", host="127.0.0.2") as another:
        assert another.client.get("/healthz", headers={"host": "127.0.0.2:8080"}).status_code == 200
        assert another.client.get("/healthz", headers={"host": "127.0.0.3:8080"}).status_code == 421


def test_the_wait_that_is_applied_is_told_not_the_one_that_was_asked(tmp_path: Path) -> None:
    with serving(tmp_path, most_wait=1.0) as s:
        for said, applied in (
            ("wait=99999", "1"),
            ("respond-async, wait=0", "0"),
            ('wait="1"', "1"),
            ("wait=-1", None),
        ):
            found = s.post(prefer=said).headers.get("preference-applied")
            assert found == (None if applied is None else f"wait={applied}")


def test_a_page_of_another_site_can_change_nothing(service: Service) -> None:
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://127.0.0.1:9999"},
    ):
        answer = service.client.post("/v1/plans?devices=4", files={"model": b"x"}, headers=headers)
        _is_problem(answer, 403, "origin-forbidden")
    own = {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"}
    assert service.client.post("/v1/plans?devices=4", files={"model": b"x"}, headers=own).status_code == 202


def test_too_large_a_body_is_refused_whether_its_length_is_said_or_not(tmp_path: Path) -> None:
    def pieces() -> Any:
        yield from [b"x" * 600] * 2

    with serving(tmp_path, upload_limit=1000) as s:
        assert s.post(b"x" * 1000).status_code == 202
        assert _is_problem(s.post(b"x" * 1001), 413, "too-large")["limit_bytes"] == 1000
        answer = s.client.post("/v1/plans?devices=4", content=pieces(), headers=ONNX)
        assert _is_problem(answer, 413, "too-large")["limit_bytes"] == 1000
        assert answer.headers["connection"] == "close"
        assert len(list(s.store.blobs.digests())) == 1
        files = {"model": b"x" * 900, "constraints": b"y" * 200}
        _is_problem(s.client.post("/v1/plans?devices=4", files=files), 413, "too-large")
        answer = s.client.post("/v1/sessions", content=b"x" * 70_000, headers={"content-type": "application/json"})
        _is_problem(answer, 413, "too-large")


def test_a_body_that_stops_coming_is_given_up() -> None:
    async def never() -> Any:
        await asyncio.sleep(60)

    with pytest.raises(Problem, match="nothing of the body came"):
        asyncio.run(limited(never, 100, silence=0.01)())


def test_a_body_that_trickles_is_given_up_and_a_steady_one_is_not() -> None:
    now = 0.0

    def trickle(pause: float, size: int) -> Any:
        async def receive() -> Any:
            nonlocal now
            now += pause
            if now > 100_000:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": b"x" * size, "more_body": True}

        return limited(receive, 10**9, silence=30.0, slowest=1000.0, clock=lambda: now)

    async def take(receive: Any, times: int) -> None:
        for _ in range(times):
            await receive()

    with pytest.raises(Problem, match=r"4 bytes of the body came in .* expected 1000 a second"):
        asyncio.run(take(trickle(10.0, 1), 10))
    now = 0.0
    asyncio.run(take(trickle(10.0, 10_000), 1000))


def test_so_many_requests_of_a_tenant_are_answered_at_a_time(tmp_path: Path) -> None:
    with serving(tmp_path, open_requests=1) as s:
        assert s.client.get("/v1/jobs").status_code == 200
        s.client.app.state.service.open["local"] += 1  # type: ignore[attr-defined]
        _is_problem(s.client.get("/v1/jobs"), 429, "rate-limited")
        assert s.client.get("/healthz").status_code == 200
        s.client.app.state.service.open["local"] -= 1  # type: ignore[attr-defined]
        assert s.client.get("/v1/jobs").status_code == 200


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, rate=0.5) as s:
        first = s.client.get("/v1/jobs")
        assert first.status_code == 200
        assert first.headers["ratelimit-policy"] == '"tenant";q=1;w=2'
        answer = s.client.get("/v1/jobs")
        _is_problem(answer, 429, "rate-limited")
        assert int(answer.headers["retry-after"]) == 2
        assert s.client.get("/healthz").status_code == 200


def test_a_bucket_fills_with_time_and_each_tenant_has_its_own() -> None:
    now = 0.0
    buckets = Buckets(2.0, clock=lambda: now)
    taken = [buckets.take("a") for _ in range(5)]
    assert [r.wait > 0 for r in taken if r] == [False] * 4 + [True]
    assert (other := buckets.take("b")) is not None
    assert other.wait == 0
    now = 0.5
    assert [(r := buckets.take("a")) and r.wait for _ in range(2)] == [0.0, 0.5]


def test_large_answers_are_compressed_and_their_tags_differ(service: Service) -> None:
    plain = service.client.get("/v1/hardware", headers={"accept-encoding": "identity"})
    packed = service.client.get("/v1/hardware", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert plain.json() == packed.json()
    assert plain.headers["etag"] != packed.headers["etag"]
    assert "Accept-Encoding" in plain.headers["vary"]
    for tag in (
        plain.headers["etag"],
        packed.headers["etag"],
        f"W/{plain.headers['etag']}",
        '"other", ' + plain.headers["etag"],
    ):
        again = service.client.get("/v1/hardware", headers={"if-none-match": tag})
        assert (again.status_code, again.content) == (304, b"")
        assert again.headers["etag"]
    refused = service.client.get("/v1/hardware", headers={"accept-encoding": "gzip;q=0, identity"})
    assert "content-encoding" not in refused.headers


def test_hardware_is_listed_and_shown(service: Service) -> None:
    found = service.client.get("/v1/hardware").json()
    assert [h["name"] for h in found] == list(profile_names())
    one = service.client.get("/v1/hardware/a100-80").json()
    assert one["name"] == "a100-80"
    assert one["sources"]


def test_ready_means_that_a_worker_is_at_work(service: Service) -> None:
    _is_problem(service.client.get("/readyz"), 503, "unavailable")
    service.store.leases.heartbeat("test", (), slots=1)
    assert service.client.get("/readyz").json()["status"] == "ok"


def test_not_ready_means_that_nothing_can_be_written(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        nonlocal looks
        looks += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    looks = 0
    monkeypatch.setattr(service_module, "PROBED_S", 0.05)
    service.store.leases.heartbeat("test", (), slots=1)
    assert service.client.get("/readyz").status_code == 200
    time.sleep(0.06)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        answer = service.client.get("/readyz")
        _is_problem(answer, 507, "storage-full")
        assert answer.headers["retry-after"] == "60"
        patch.setattr(service_module, "PROBED_S", 60.0)
        _is_problem(service.client.get("/readyz"), 507, "storage-full")
        assert looks == 1
    time.sleep(0.06)
    assert service.client.get("/readyz").status_code == 200
    assert not list((service.store.blobs.folder / "00").iterdir())


def test_a_damaged_store_is_said_once_and_ends_the_service(service: Service, caplog: Any) -> None:
    ended = 0

    def end() -> None:
        nonlocal ended
        ended += 1

    service.post()
    found = service.client.app.state.service  # type: ignore[attr-defined]
    found.on_damage = end
    for end_of_name in ("", "-wal", "-shm"):
        path = service.store.folder / f"store.sqlite{end_of_name}"
        with path.open("r+b") as file:
            file.write(os.urandom(path.stat().st_size))
    for _ in range(3):
        _is_problem(service.client.get("/v1/jobs"), 503, "unavailable")
    assert ended == 1
    assert "restore it" in str(found.damage)
    (record,) = [r for r in caplog.records if "the store is damaged" in r.getMessage()]
    assert "restore it" in record.fields["why"]


def test_metrics_count_requests_problems_and_work(service: Service) -> None:
    service.post()
    service.client.get("/v1/jobs/none")
    text = service.client.get("/metrics").text
    assert 'planner_requests_total{method="POST",route="/v1/plans",status="202"} 1.0' in text
    assert 'planner_problems_total{type="not-found"} 1.0' in text
    assert 'planner_store{what="tasks_queued"} 1.0' in text
    assert "planner_uploaded_bytes_total 7.0" in text
    service.store.leases.died(service.claim(), "SIGKILL")
    text = service.client.get("/metrics").text
    assert 'planner_child_deaths_total{how="SIGKILL"} 1.0' in text
    assert 'planner_task_restarts_total{cause="child-died"} 1.0' in text


def test_the_documentation_has_every_problem_setting_and_path(service: Service) -> None:
    text = (Path(__file__).parents[2] / "docs" / "service.md").read_text()
    for name, kind in PROBLEMS.items():
        assert f"| `{name}` | {kind.status} | {kind.title}." in text
    for f in dataclasses.fields(Settings):
        assert f"`--{f.name.replace('_', '-')}`, `PLANNER_{f.name.upper()}`" in text
    paths = service.client.get("/openapi.json").json()["paths"]
    for option in paths["/v1/plans"]["post"]["parameters"]:
        assert option["in"] == "header" or f"`{option['name']}`" in text


def test_every_operation_says_what_it_answers_with_examples(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    names = set()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            names.add(operation["operationId"])
            behind_keys = path.startswith("/v1/") and operation["operationId"] != "endSession"
            assert ("401" in operation["responses"]) == (behind_keys or path == "/metrics")
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    (content,) = response["content"].values()
                    assert all(e["value"]["status"] == int(status) for e in content["examples"].values())
    routes = (route for router in routers() for route in router.routes if isinstance(route, APIRoute))
    assert names == {route.operation_id for route in routes if route.include_in_schema}
    for operations in document["paths"].values():
        for operation in operations.values():
            for response in operation["responses"].values():
                assert all(link["operationId"] in names for link in response.get("links", {}).values())
