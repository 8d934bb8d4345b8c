"""Headers and parameters that are parsed, with what no client sends: refused or ignored, never a fault."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planner.api.errors import MOST_ERRORS
from tests.service.http import ONNX, Service, serving

DIGITS = "1" * 5000
ODD = (
    *("", " ", "[", "http://[", "http://[::1", "[::1]:", "http://\xe9", "nan", "inf;q=nan", "1e999"),
    *(DIGITS, "-" + DIGITS, "multipart/form-data; a*0*=x"),
    *(";;;=,,", "=", ";q=", "a;q=inf", '"', "\\", "%", "%00", "\xff", "W/", "wait=" + DIGITS, "a" * 9000, "*", "null"),
    *("multipart/form-data; boundary=" + "b" * 300, "multipart/form-data; filename*=utf-99''a"),
    *("planner_session=[", "planner_session=" + DIGITS, "Bearer \x80", "bytes=0-", "2:3:4", "u@[v]:w", "a]", "½", "٣"),
)
POSTED = ("content-encoding", "content-type", "idempotency-key", "origin", "sec-fetch-site")
READ = {
    "/v1/plans/{plan}": ("accept", "accept-encoding", "authorization", "cookie", "if-match", "if-none-match", "range"),
    "/v1/jobs?limit=1": ("host", "x-request-id"),
    "/v1/jobs/{job}": ("prefer",),
    "/v1/jobs/{job}/events": ("last-event-id",),
    "/v1/diffs/{plan}/{plan}": ("accept",),
}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_header_is_a_fault(tmp_path: Path, host: str) -> None:
    with serving(tmp_path, host=host, rate=0, longest_stream=0.01, most_wait=0.01, queue=10**6) as s:
        plan = s.planned()
        job = s.client.get("/v1/jobs").json()["items"][0]["id"]
        s.post(b"another")
        calls = [("GET", path.format(plan=plan, job=job), name) for path, names in READ.items() for name in names]
        calls += [("POST", "/v1/plans?devices=4", name) for name in POSTED]
        if host == "0.0.0.0":  # which may be called by any name
            calls = [call for call in calls if call[2] == "host"]
        for method, path, name in calls:
            for value in ODD:
                given = dict(ONNX) | {name: value.encode("utf-8")}
                answer = s.client.request(method, path, content=b"m" if method == "POST" else None, headers=given)
                assert answer.status_code < 500, (method, path, name, value[:50], answer.text[:200])


def test_no_parameter_is_a_fault(tmp_path: Path) -> None:
    draw = random.Random(11)
    with serving(tmp_path, rate=0, most_wait=0.01, longest_stream=0.01, queue=10**6) as s:
        document = s.client.get("/openapi.json").json()
        for path, operations in document["paths"].items():
            for method, operation in operations.items():
                if path == "/readyz":
                    continue  # it says by 503 that no worker is there
                names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
                for value in draw.sample(ODD, 14):
                    url = path
                    for part in [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]:
                        url = url.replace(f"{{{part}}}", re.sub(r"^[./]+|[/\\]", "", value)[:900] or "x")
                    params = {n: value[:6000] for n in names if draw.random() < 0.3}
                    answer = s.client.request(method, url, params=params, headers=ONNX, content=b"m")
                    assert answer.status_code < 500, (method, url[:80], params.keys(), answer.text[:200])


def test_part_headers_of_a_form_are_no_fault(service: Service) -> None:
    for value in ODD:
        for line in (f"form-data; name={value}", f'form-data; name="model"; filename={value}', value):
            body = b"--b\r\ncontent-disposition: " + line[:7000].encode() + b"\r\n\r\nm\r\n--b--\r\n"
            kind = {"content-type": "multipart/form-data; boundary=b"}
            answer = service.client.post("/v1/plans?devices=4", content=body, headers=kind)
            assert answer.status_code < 500, (line[:80], answer.text[:200])


def test_an_origin_that_is_no_address_is_another_site(service: Service) -> None:
    answer = service.client.post("/v1/plans?devices=4", files={"model": b"x"}, headers={"origin": "http://["})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:planner:problem:origin-forbidden")


def test_the_list_of_wrong_fields_is_short_however_many_are_wrong(service: Service) -> None:
    for query in (
        "devices=4" + "".join(f"&o{k}=1" for k in range(5000)),
        "devices=4" + "&pin=" * 9000,
        "devices=4" + "&devices=5" * 5000,
        "devices=4&" + "x" * 50_000 + "=1",
        "devices=4&target=" + "x" * 50_000,
        "devices=4&strategy=" + "x" * 50_000,
        "devices=4&" + "&".join(f"pin={'y' * 900}" for _ in range(60)),
    ):
        answer = service.post(query=query)
        assert answer.status_code in (202, 422), answer.text[:200]
        assert len(answer.content) < (90_000 if answer.status_code == 202 else 30_000)
        assert len(answer.json().get("errors", ())) <= MOST_ERRORS
    found = service.post(query="devices=4" + "".join(f"&o{k}=1" for k in range(50))).json()
    assert f"{50 - MOST_ERRORS} more" in found["detail"]


def _aborted(service: Service, headers: Mapping[str, str], *bodies: bytes) -> tuple[list[Any], list[Any]]:
    """What the application sends to a client that goes away, and what it logs."""
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": b, "more_body": True} for b in bodies]

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/plans", "raw_path": b"/v1/plans", "query_string": b"devices=4",
        "headers": [(b"host", b"127.0.0.1:8080"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "scheme": "http", "server": ("127.0.0.1", 8080), "client": ("127.0.0.1", 1), "root_path": "",
        "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(service.client.app(scope, receive, send))  # type: ignore[arg-type]
    return sent, [p for p in service.store.blobs.folder.rglob("*") if p.is_file() and p.name != ".lock"]


@pytest.mark.parametrize("kind", [ONNX["content-type"], "multipart/form-data; boundary=b"])
def test_an_upload_that_is_broken_off_is_no_fault(service: Service, caplog: Any, kind: str) -> None:
    begun = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\n' if "boundary" in kind else b""
    with caplog.at_level("INFO", "planner.service"):
        sent, left = _aborted(service, {"content-type": kind}, begun + b"m" * 2**21)
    assert not sent
    assert not left
    (record,) = [r for r in caplog.records if r.name == "planner.service"]
    assert (record.getMessage(), record.fields["status"]) == ("request", 499)
    text = service.client.get("/metrics").text
    assert 'status="499"' in text
    assert 'type="internal"' not in text


def test_a_session_request_of_any_json_is_no_fault(service: Service) -> None:
    for body in ("[" * 60_000, '{"key": "\\ud800"}', json.dumps({"key": "x" * 50_000}), '{"key": 1' + "0" * 5000 + "}"):
        answer = service.client.post("/v1/sessions", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422
        assert len(answer.content) < 10_000
