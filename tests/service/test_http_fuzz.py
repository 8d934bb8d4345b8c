"""Requests made up from the OpenAPI document, well-formed and not: every answer is one that the document promises.

`tests.fault.schema` does the same at length.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.api.jobs.problems import problem
from tests.service.http import Service, serving
from tests.service.promises import broken_promise

ROUNDS = 12  # requests of each operation
PLAIN = {"createPlan": {"devices": "4"}, "createEvaluation": {"devices": "4", "strategy": "fsdp"}}
JUNK = ("", "0", "-1", "1e999", "null", "\x00", "ü", "%", "a/b", "../..", "x" * 300, "wait=0", "[]", '"')
BATCH = (
    b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n'
    b'--b\r\ncontent-disposition: form-data; name="requests"\r\n\r\n[{"devices": 4}, {"devices": 8}]\r\n--b--\r\n'
)
BODIES: tuple[tuple[str | None, bytes], ...] = (
    ("application/octet-stream", b"a model"),
    ("application/octet-stream", b""),
    ("application/json", b'{"key": "x"}'),
    ("application/json", b"{"),
    ("multipart/form-data; boundary=b", b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--b--\r\n'),
    ("multipart/form-data; boundary=b", b"--b\r\n\r\n"),
    ("multipart/form-data; boundary=b", BATCH),
    ("text/plain", b"x"),
    (None, b"x"),
)


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(tmp_path_factory.mktemp("fuzzed"), most_wait=0.01, longest_stream=0.01, rate=0, queue=10**6) as s:
        yield s


def _value(draw: random.Random, schema: dict[str, Any]) -> Any:
    """Of the schema, more or less."""
    if "anyOf" in schema:
        return _value(draw, draw.choice(schema["anyOf"]))
    if "enum" in schema:
        return draw.choice(schema["enum"])
    match schema.get("type"):
        case "integer" | "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum", 0))
            return draw.choice((low, low - 1, low + 1, schema.get("maximum", 7), schema.get("maximum", 7) + 1))
        case "boolean":
            return draw.choice(("true", "false", "2"))
        case "array":
            return [_value(draw, schema["items"]) for _ in range(draw.randrange(3))]
        case _:
            return draw.choice(("a", "a=1", "2x2", "64GiB", "fsdp"))


def _request(draw: random.Random, path: str, operation: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {"url": path, "params": {}, "headers": {}}
    for p in operation.get("parameters", ()):
        if not p["required"] and draw.random() < 0.6:
            continue
        value = draw.choice(JUNK) if draw.random() < 0.3 else _value(draw, p["schema"])
        if p["in"] == "path":
            found = known[p["name"]] if draw.random() < 0.6 else str(value).strip("/.\x00%") or "x"
            out["url"] = out["url"].replace(f"{{{p['name']}}}", found)
        elif p["in"] == "header":
            out["headers"][p["name"]] = str(value).encode("latin-1", "replace").replace(b"\x00", b"")
        else:
            out["params"][p["name"]] = value
    if draw.random() < 0.1:
        out["params"]["unknown"] = "1"
    if "requestBody" in operation:
        kind, out["content"] = draw.choice(BODIES)
        out["headers"] |= {} if kind is None else {"content-type": kind.encode()}
    return out


def _plain(path: str, operation: dict[str, Any], known: dict[str, str]) -> dict[str, Any]:
    """The least that is well-formed."""
    out: dict[str, Any] = {"url": path, "params": dict(PLAIN.get(operation["operationId"], {})), "headers": {}}
    for name, value in known.items():
        out["url"] = out["url"].replace(f"{{{name}}}", value)
    if operation["operationId"] == "createBatch":
        return out | {"content": BATCH, "headers": {"content-type": "multipart/form-data; boundary=b"}}
    for kind, body in BODIES:
        if kind in operation.get("requestBody", {}).get("content", {}):
            return out | {"content": body, "headers": {"content-type": kind}}
    return out


def test_every_answer_is_one_that_the_document_promises(fuzzed: Service) -> None:
    document = fuzzed.client.get("/openapi.json").json()
    calls = [(p, method, o) for p, operations in document["paths"].items() for method, o in operations.items()]
    calls.sort(key=lambda c: c[1] == "delete")  # what forgets the plan comes last
    draw = random.Random(7)
    seen = set()
    for turn in range(ROUNDS):
        while (claim := fuzzed.store.leases.claim("test", (0, 1, 2))) is not None:
            fuzzed.store.leases.fail(claim, problem("input-invalid", "made up"), lasting=turn % 2 == 0)
        plan = fuzzed.planned(model=draw.randbytes(8))
        job = fuzzed.client.get("/v1/jobs?limit=1").json()["items"][0]["id"]
        known = {"plan_id": plan, "a": plan, "b": plan, "job_id": job, "name": ("plan.json", "cpu")[turn % 2]}
        for path, method, operation in calls:
            asked = _request(draw, path, operation, known) if turn > 1 else _plain(path, operation, known)
            answer = fuzzed.client.request(method, **asked)
            if operation["operationId"] == "getReadiness" and answer.status_code == 503:
                continue  # no worker: the test is it
            assert broken_promise(answer, operation) is None
            seen.add((operation["operationId"], answer.status_code // 100))
    assert {name for name, kind in seen if kind == 2} >= {o["operationId"] for *_, o in calls} - {"getReadiness"}


def test_the_page_asks_only_for_what_is_there(fuzzed: Service) -> None:
    page = fuzzed.client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self' 'sha256-" in policy
    assert "unsafe" not in policy
    for name in (Path(__file__).parents[2] / "api" / "static").glob("*.js"):
        found = fuzzed.client.get(f"/static/{name.name}")
        assert found.headers["content-type"] == "text/javascript; charset=utf-8"
        assert found.content == name.read_bytes()
    for odd in ("../app.py", "..%2Fapp.py", "nothing.js", "%00", ""):
        assert fuzzed.client.get(f"/static/{odd}").status_code == 404
