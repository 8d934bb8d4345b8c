"""The client: what it sends, what it sends again, and what it makes of answers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from planner.api import client as clients
from planner.api.client import Client, Event, JobState, Progress, WaitTimeout
from planner.api.client import job as jobs
from planner.api.client import transport as transports
from planner.api.client.problems import problem_error
from planner.api.client.stream import read_events
from planner.errors import InputError, UsageError
from planner.frontends.file.strip import strip_model
from tests.service.http import Service
from tests.unit.frontends_models import node, serialised, value

URN = "urn:planner:problem:"
MODEL = serialised([node("Relu", "x", "y")], [value("x", [4])], ["y"])
Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(transports.time, "sleep", slept.append)
    monkeypatch.setattr(jobs, "PAUSE", 0)
    return slept


def client(handler: Handler, **options: object) -> Client:
    return Client("http://service", http=httpx.Client(transport=httpx.MockTransport(handler)), **options)  # type: ignore[arg-type]


def job_document(status: str, **fields: object) -> dict[str, object]:
    return {"id": "j1", "kind": "plan", "name": "m", "status": status, "progress": {}, "plan": None, **fields}


def problem(name: str, status: int, **more: object) -> dict[str, object]:
    return {"type": URN + name, "title": "A title", "status": status, "detail": "a detail", **more}


def test_a_model_is_sent_without_its_weights_and_with_options_as_parameters(tmp_path):
    seen: list[httpx.Request] = []
    weights = serialised([node("Relu", "x", "y", doc_string="d" * 999)], [value("x", [4])], ["y"])
    (tmp_path / "my model.onnx").write_bytes(weights)

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(202, json=job_document("queued"))

    client(answer, key="secret").submit(tmp_path / "my model.onnx", devices=8, pin=["a x=1", "b"], batch=None)
    (request,) = seen
    assert request.content == strip_model(weights) != weights
    assert request.url.params.multi_items() == [
        ("devices", "8"),
        ("name", "my_model"),
        ("pin", "a x=1"),
        ("pin", "b"),
    ]
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["content-type"] == "application/octet-stream"
    assert len(request.headers["idempotency-key"]) >= 16


def test_constraints_go_beside_the_model():
    def answer(request: httpx.Request) -> httpx.Response:
        request.read()
        assert request.headers["content-type"].startswith("multipart/form-data")
        assert b"rest: data_parallel" in request.content
        assert MODEL in request.content
        return httpx.Response(202, json=job_document("queued"))

    client(answer).submit(MODEL, devices=8, constraints=b"rest: data_parallel")


def test_a_request_is_sent_again_with_the_same_idempotency_key_until_the_service_is_back():
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        match len(keys):
            case 1:
                raise httpx.ConnectError("refused")
            case 2:
                raise httpx.ReadError("reset")
            case 3:
                return httpx.Response(503, json=problem("unavailable", 503))
        return httpx.Response(202, json=job_document("queued"))

    assert client(answer).submit(MODEL, devices=8).id == "j1"
    assert len(keys) == 4
    assert len(set(keys)) == 1


def test_a_busy_service_is_given_the_time_it_asks_for(no_pauses):
    answers = iter([httpx.Response(429, json=problem("rate-limited", 429), headers={"retry-after": "7"})])

    def answer(_: httpx.Request) -> httpx.Response:
        return next(answers, httpx.Response(200, json=job_document("running")))

    assert client(answer).job("j1").status == "running"
    assert no_pauses == [7.0]


def test_patience_ends():
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(clients.ConnectionFailed, match="planner serve"):
        client(refuse, patience=0).job("j1")
    with pytest.raises(clients.TooMany):
        client(
            lambda _: httpx.Response(429, json=problem("queue-full", 429), headers={"retry-after": "60"}), patience=5
        ).job("j1")


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("unauthorised", 401, clients.Unauthorised),
        ("not-found", 404, clients.NotFound),
        ("too-large", 413, clients.TooLarge),
        ("validation", 422, clients.Invalid),
        ("input-invalid", 422, clients.Invalid),
        ("cannot-fit", 422, clients.CannotFit),
        ("no-plan", 422, clients.NoPlan),
        ("child-memory", 422, clients.LimitMet),
        ("target-refuses", 422, clients.TargetRefuses),
        ("internal", 500, clients.ServerFault),
        ("of-a-later-version", 409, clients.Conflict),
    ],
)
def test_a_problem_is_an_error_of_its_family_that_shows_title_detail_and_type(name, status, kind):
    document = problem(name, status, errors=[{"in": "query", "name": "devices", "detail": "expected 1 or more"}])
    with pytest.raises(kind) as caught:
        client(lambda _: httpx.Response(status, json=document)).job("j1")
    assert type(caught.value) is kind
    assert all(text in str(caught.value) for text in ("A title", "a detail", URN + name, "devices: expected 1 or more"))
    assert caught.value.name == name


def test_bounds_on_memory_come_with_the_error():
    error = problem_error(problem("cannot-fit", 422, lower_bound_bytes=7, sufficient_bytes=None))
    assert isinstance(error, clients.CannotFit)
    assert (error.lower_bound_bytes, error.sufficient_bytes) == (7, None)


def test_what_is_no_planner_service_is_said_to_be_none():
    with pytest.raises(clients.ConnectionFailed, match="no planner service"):
        client(lambda _: httpx.Response(404, text="<html>nginx</html>")).job("j1")
    with pytest.raises(clients.ConnectionFailed, match="no JSON"):
        client(lambda _: httpx.Response(200, text="<html>hello</html>")).hardware()


@pytest.mark.parametrize("url", ["ftp://host", "http://", "/tmp/socket"])
def test_addresses_that_are_none_are_usage_errors(url):
    with pytest.raises(UsageError, match="--server"):
        Client(url)


class Broken(httpx.SyncByteStream):
    """A body that ends, or breaks where an exception stands."""

    def __init__(self, *parts: bytes | Exception) -> None:
        self.parts = parts

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            if isinstance(part, Exception):
                raise part
            yield part


def sse(seq: int, kind: str, **data: object) -> bytes:
    return f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def test_events_are_taken_up_where_a_broken_connection_left_them():
    asked: list[str | None] = []
    cut = b"id: 3\nevent: pro"
    bodies = iter([
        Broken(sse(1, "started") + b": alive\n\n", sse(2, "progress", gap=0.5), cut, httpx.ReadError("reset")),
        httpx.ConnectError("refused"),
        Broken(sse(3, "progress", gap=0.1)),
        Broken(sse(4, "succeeded", plan="p")),
    ])  # fmt: skip

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            return httpx.Response(200, json=job_document("running"))
        asked.append(request.headers.get("last-event-id"))
        body = next(bodies)
        if isinstance(body, Exception):
            raise body
        return httpx.Response(200, stream=body)

    found = list(client(answer).job("j1").events())
    assert [(e.id, e.type) for e in found] == [
        ("1", "started"),
        ("2", "progress"),
        ("3", "progress"),
        ("4", "succeeded"),
    ]
    assert asked == [None, "2", "2", "3"]


def test_waiting_tells_progress_and_ends_with_the_plan():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            body = sse(1, "phase", phase="solve") + sse(2, "progress", incumbent_s=2.0, bound_s=1.0, gap=1.0)
            return httpx.Response(200, content=body + sse(3, "succeeded"))
        ended = answer.calls  # type: ignore[attr-defined]
        answer.calls = True  # type: ignore[attr-defined]
        return httpx.Response(200, json=job_document("succeeded" if ended else "running", plan="p1" if ended else None))

    answer.calls = False  # type: ignore[attr-defined]
    told: list[Progress] = []
    job = client(answer).job("j1").wait(told.append)
    assert job.plan_id == "p1"
    assert told == [Progress(), Progress(phase="solve"), Progress("solve", 2.0, 1.0, 1.0)]


def test_waiting_again_goes_on_behind_what_was_told():
    asked: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/events"):
            ended = len(asked) > 1
            return httpx.Response(
                200, json=job_document("succeeded" if ended else "running", plan="p" if ended else None)
            )
        asked.append(request.headers.get("last-event-id"))
        body = sse(1, "phase", phase="import") + sse(2, "phase", phase="solve")
        return httpx.Response(200, content=body if len(asked) == 1 else sse(3, "succeeded"))

    def interrupt(progress: Progress) -> None:
        if progress.phase == "solve":
            raise KeyboardInterrupt

    job = client(answer).job("j1")
    with pytest.raises(KeyboardInterrupt):
        job.wait(interrupt)
    told: list[Progress] = []
    job.wait(told.append)
    assert asked == [None, "2"]
    assert all(p.phase is None for p in told)  # nothing is told twice


def test_a_failed_job_raises_its_problem_and_a_cancelled_one_with_a_plan_does_not():
    failed = JobState.of(job_document("failed", error=problem("cannot-fit", 422)))
    with pytest.raises(clients.CannotFit):
        clients.Job(client(lambda _: httpx.Response(500)), failed).wait()
    stopped = JobState.of(job_document("cancelled", plan="p1"))
    assert clients.Job(client(lambda _: httpx.Response(500)), stopped).wait().plan_id == "p1"


def test_waiting_ends_at_its_timeout_though_the_stream_is_silent():
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, stream=Broken(b": alive\n\n" * 3, httpx.ReadTimeout("silence")))
        return httpx.Response(200, json=job_document("running"))

    with pytest.raises(WaitTimeout, match="still running"):
        client(answer).job("j1").wait(timeout=0.05)


def test_a_plan_that_was_altered_on_its_way_is_refused():
    content = b'{"a": 1}'
    name = hashlib.sha256(content).hexdigest()[:32]
    assert client(lambda _: httpx.Response(200, content=content)).plan(name) == content
    with pytest.raises(clients.ConnectionFailed, match="altered"):
        client(lambda _: httpx.Response(200, content=content + b" ")).plan(name)


def test_an_artifact_is_waited_for_and_written_whole(tmp_path):
    answers = iter([httpx.Response(202, json={"status": "running"}), httpx.Response(200, content=b"<html>")])
    to = tmp_path / "deep" / "report.html"
    assert client(lambda _: next(answers)).artifact("p", "report.html", to) == b"<html>"
    assert to.read_bytes() == b"<html>"


def test_pages_are_followed():
    def answer(request: httpx.Request) -> httpx.Response:
        second = request.url.params.get("cursor") == "c"
        item = {"id": "b" if second else "a", "created_at": "2026-01-31T09:30:00.125Z"}
        return httpx.Response(200, json={"items": [item], "next": None if second else "c"})

    assert [p.id for p in client(answer).plans()] == ["a", "b"]


def test_models_that_cannot_be_read_are_input_errors_before_anything_is_sent(tmp_path):
    def answer(_: httpx.Request) -> httpx.Response:
        raise AssertionError("nothing is sent")

    for bad in (tmp_path / "none.onnx", b"\xff\xff", Path("/dev/null")):
        with pytest.raises(InputError):
            client(answer).submit(bad, devices=2)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size):
    text = (
        b"\xef\xbb\xbf: hello\r\n\r\nid: 1\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n"
        b"event: phase\nid: 2\ndata:{\"b\": \"\xe2\x80\xa8\xc3\xa9\"}\n\n\n\rid: 3\rdata: [1]\r\r"
    )  # fmt: skip
    found = [e for e in read_events(text[i : i + size] for i in range(0, len(text), size)) if e is not None]
    assert found == [
        Event("1", "message", {"a": 1}),
        Event("2", "phase", {"b": "\u2028é"}),
        Event("3", "message", {"text": [1]}),
    ]


def test_a_batch_sends_its_model_once_and_is_as_many_jobs(service: Service) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        headers = {k: v for k, v in request.headers.items() if k != "host"}
        found = service.client.request(request.method, request.url.path, content=request.read(), headers=headers)
        return httpx.Response(found.status_code, content=found.content, headers={"content-type": "application/json"})

    sweep = [{"devices": 4, "batch": None}, {"devices": 8, "name": "wide"}]
    jobs = client(answer).submit_all(MODEL, sweep, constraints=b"rest: zero", idempotency_key="k")
    assert [(j.state.document["options"]["devices"], j.state.name) for j in jobs] == [(4, "model"), (8, "wide")]
    claim = service.claim()
    assert service.store.blobs.read(claim.inputs["model"]) == strip_model(MODEL)
    assert service.store.blobs.read(claim.inputs["constraints"]) == b"rest: zero"
    assert [j.id for j in client(answer).submit_all(MODEL, sweep, constraints=b"rest: zero", idempotency_key="k")] == [
        j.id for j in jobs
    ]
