"""Webhooks: sent once a job has ended, signed, again where they are not taken, and only where they may go."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from planner.api import webhooks
from planner.api.errors import Problem
from planner.api.jobs.errors import StoreBusy
from planner.api.jobs.store import Store
from planner.api.jobs.tasks import Submission, Task
from planner.api.jobs.webhooks import Webhooks
from planner.api.webhooks import Deliveries, checked
from tests.service.http import Service, serving


class Receiver:
    """A tenant's server; `answers` are given in turns, 204 behind them."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.seen: list[tuple[str, dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.seen.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                status, headers = outer.answers.pop(0) if outer.answers else (204, {})
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://localhost:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.stop()


@pytest.fixture
def secret(tmp_path: Path) -> str:
    return Store(tmp_path).keys.create("team", "")[1]


def _deliver(store: Store, hosts: tuple[str, ...] = ("localhost",)) -> None:
    async def once() -> None:
        async with httpx.AsyncClient(follow_redirects=False, trust_env=False) as client:
            deliveries = Deliveries(store, hosts)
            await asyncio.gather(*(deliveries.send(client, webhook) for webhook in deliveries.due({})))

    asyncio.run(once())


def _asked(s: Service, url: str, model: bytes = b"a model") -> str:
    answer = s.post(model, f"devices=4&webhook={url}")
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


@pytest.fixture
def quiet(tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service that leaves the sending to the test."""
    monkeypatch.setattr(webhooks, "EVERY_S", 3600.0)
    monkeypatch.setattr(webhooks, "FIRST_S", 0.0)
    with serving(tmp_path, secret, webhook_hosts=("localhost",)) as s:
        time.sleep(0.05)  # the first look of its own is over
        yield s


def test_the_end_of_a_job_is_sent_once_and_signed_by_the_key(quiet: Service, receiver: Receiver, secret: str) -> None:
    job = _asked(quiet, f"{receiver.url}/hook?a=1")
    _deliver(quiet.store)
    assert not receiver.seen
    quiet.work({"plan.json": b"{}"})
    _deliver(quiet.store)
    _deliver(quiet.store)
    ((path, headers, body),) = receiver.seen
    assert path == "/hook?a=1"
    assert headers["host"] == receiver.url.removeprefix("http://")
    found = json.loads(body)
    assert (found["job"], found["status"], found["href"]) == (job, "succeeded", f"/v1/jobs/{job}")
    assert found["plan"] == quiet.client.get(found["href"]).json()["plan"]
    moment, signed = (part.partition("=")[2] for part in headers["planner-signature"].split(","))
    key = hashlib.sha256(secret.encode()).hexdigest()
    assert signed == hmac.new(key.encode(), f"{moment}.".encode() + body, hashlib.sha256).hexdigest()
    assert secret not in str(receiver.seen)


def test_one_that_is_not_taken_is_sent_again_and_given_up_at_last(
    quiet: Service, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(webhooks, "TRIES", 3)
    for answers, sent in (([500, 503], 3), ([500] * 9, 3), ([204], 1)):
        receiver.seen.clear()
        receiver.answers = [(status, {}) for status in answers]
        _asked(quiet, f"{receiver.url}/hook?token=hidden", str(answers).encode())
        quiet.work({"plan.json": b"{}"})
        for _ in range(5):
            _deliver(quiet.store)
        assert len(receiver.seen) == sent
        assert len({body for *_, body in receiver.seen}) == 1
    lines = [r.fields for r in caplog.records if r.getMessage() == "a webhook was not taken"]
    assert lines[-1]["try"] == 3
    assert "hidden" not in str(lines)


def test_pauses_grow(quiet: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FIRST_S", 5.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        _asked(quiet, f"http://localhost:{closed.getsockname()[1]}/")
    quiet.work({"plan.json": b"{}"})
    now = time.time()
    _deliver(quiet.store)
    assert quiet.store.webhooks.take(now + 4.0, 0.0, 9, 9) == []
    (again,) = quiet.store.webhooks.take(now + 60.0, 0.0, 9, 9)
    assert again.tries == 1


def test_a_redirect_is_not_followed(quiet: Service, receiver: Receiver) -> None:
    other = Receiver()
    try:
        receiver.answers = [(302, {"location": f"{other.url}/"}), (307, {"location": f"{other.url}/"})]
        _asked(quiet, f"{receiver.url}/hook")
        quiet.work({"plan.json": b"{}"})
        for _ in range(3):
            _deliver(quiet.store)
        assert len(receiver.seen) == 3
        assert not other.seen
    finally:
        other.stop()


NEVER = (
    *("169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "fd00:ec2::254", "100.100.100.200", "0.0.0.0"),
    *("64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "fd00:ec2::23", "168.63.129.16"),
)


@pytest.mark.parametrize("address", NEVER)
def test_no_name_leads_to_where_clouds_and_neighbours_answer(
    quiet: Service, monkeypatch: pytest.MonkeyPatch, caplog: Any, address: str
) -> None:
    asked: list[Any] = []

    async def resolved(self: Any, host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("127.0.0.1", address)]

    async def send(self: Any, request: Any, **_: Any) -> Any:
        asked.append(request)
        raise AssertionError

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", resolved)
    monkeypatch.setattr(httpx.AsyncClient, "send", send)
    _asked(quiet, "http://localhost:1/")
    quiet.work({"plan.json": b"{}"})
    _deliver(quiet.store)
    assert not asked
    assert any("localhost is " in r.fields["why"] for r in caplog.records if hasattr(r, "fields") and "why" in r.fields)


def test_only_hosts_that_the_operator_names_get_any(quiet: Service, receiver: Receiver) -> None:
    for url in (
        *("http://other.example/", "http://localhost.other.example/", "http://other@localhost/", "ftp://localhost/"),
        *("http://localhost:x/", "http://localhost:0/", "http://[/", "localhost/", "http://lo calhost/", "http:///x"),
        *("http://localhost/#a", "http://127.0.0.1/", "http://\u00e4.example/"),
    ):
        answer = quiet.client.post(
            "/v1/plans", params={"devices": "4", "webhook": url}, content=b"m", headers={"content-type": "text/plain"}
        )
        assert answer.status_code == 422, url
        assert answer.json()["type"].endswith((":usage", ":validation"))
    assert quiet.store.jobs("team") == []
    _asked(quiet, f"{receiver.url}/")
    quiet.work({"plan.json": b"{}"})
    _deliver(quiet.store, hosts=("other.example",))  # as the operator has it by now
    assert not receiver.seen
    with pytest.raises(Problem, match="no --webhook-hosts"):
        checked("http://localhost/", ())


def test_a_receiver_that_answers_a_byte_at_a_time_is_given_up(
    quiet: Service, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(webhooks, "PATIENCE_S", 0.5)
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as slow:

        def trickle() -> None:
            with contextlib.suppress(OSError), slow.accept()[0] as wire:
                wire.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not ended.wait(0.1):
                    wire.sendall(b"y")

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            _asked(quiet, f"http://localhost:{slow.getsockname()[1]}/")
            quiet.work({"plan.json": b"{}"})
            began = time.monotonic()
            _deliver(quiet.store)
            assert time.monotonic() < began + 5.0
        finally:
            ended.set()
            thread.join()
    assert any(getattr(r, "fields", {}).get("try") == 1 for r in caplog.records)


def test_one_that_is_asked_for_while_another_is_sent_is_sent_too(quiet: Service) -> None:
    job = _asked(quiet, "http://localhost/first")
    quiet.work({"plan.json": b"{}"})
    (first,) = quiet.store.webhooks.take(time.time(), 60.0, 9, 9)
    quiet.post(query="devices=4&webhook=http://localhost/second")  # the same job
    quiet.store.webhooks.end(first)
    quiet.store.webhooks.again(first, 60.0)
    assert [(w.job, w.url, w.tries) for w in quiet.store.webhooks.take(time.time(), 60.0, 9, 9)] == [
        (job, "http://localhost/second", 0)
    ]


def test_without_keys_there_is_nothing_to_sign_with(tmp_path: Path) -> None:
    with serving(tmp_path, webhook_hosts=()) as s:
        answer = s.post(query="devices=4&webhook=http://localhost/")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:planner:problem:usage")
        assert "no keys" in answer.json()["detail"]


def test_what_one_process_has_taken_another_leaves_and_a_removed_job_has_none(quiet: Service) -> None:
    job = _asked(quiet, "http://localhost/")
    quiet.client.post(f"/v1/jobs/{job}:cancel")
    now = time.time()
    assert [w.job for w in quiet.store.webhooks.take(now, 60.0, 9, 9)] == [job]
    assert quiet.store.webhooks.take(now, 60.0, 9, 9) == []
    assert [w.job for w in quiet.store.webhooks.take(now + 61.0, 60.0, 9, 9)] == [job]  # it was killed
    assert quiet.client.delete(f"/v1/jobs/{job}").status_code == 204
    assert quiet.store.webhooks.take(now + 999.0, 60.0, 9, 9) == []


def test_a_running_service_sends_them_by_itself_of_evaluations_too(
    tmp_path: Path, secret: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "EVERY_S", 0.01)
    with serving(tmp_path, secret, webhook_hosts=("localhost",)) as s:
        url = f"/v1/evaluations?devices=4&strategy=fsdp&webhook={receiver.url}/evaluated"
        job = s.client.post(url, content=b"m", headers={"content-type": "application/octet-stream"}).json()
        s.work({"evaluation.json": b"{}"})
        for _ in range(1000):
            if receiver.seen:
                break
            time.sleep(0.01)
        ((path, _, body),) = receiver.seen
        assert path == "/evaluated"
        assert json.loads(body)["job"] == job["id"]


def test_a_receiver_that_takes_its_time_keeps_no_other_tenant_waiting(
    tmp_path: Path, secret: str, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "EVERY_S", 0.01)
    monkeypatch.setattr(webhooks, "SOON_S", 0.01)
    other = Store(tmp_path).keys.create("other", "")[1]
    with socket.create_server(("127.0.0.1", 0)) as slow, serving(tmp_path, secret, webhook_hosts=("localhost",)) as s:
        for k in range(9):
            _asked(s, f"http://localhost:{slow.getsockname()[1]}/", b"%d" % k)
            s.work({"plan.json": b"{}"})
        until = time.monotonic() + 20
        while len(s.store.webhooks.take(time.time(), 0.0, 99, 99)) > 9 - webhooks.EACH:
            assert time.monotonic() < until, "none of the slow ones is being sent"
            time.sleep(0.01)
        s.post(b"other", f"devices=4&webhook={receiver.url}/other", authorization=f"Bearer {other}")
        s.work({"plan.json": b"{}"})
        while not receiver.seen:
            assert time.monotonic() < until, "the webhook of another tenant waits"
            time.sleep(0.01)
        assert len(s.store.webhooks.take(time.time(), 0.0, 99, 99)) == 9 - webhooks.EACH


def test_tenants_take_turns_and_two_processes_take_each_of_them_once(quiet: Service) -> None:
    store = quiet.store
    for tenant, count in (("a", 5), ("b", 2), ("c", 1)):
        for k in range(count):
            task = Task("plan", {"model": store.blobs.put(b"%d" % k)}, {"of": tenant})
            (made,) = store.submit_all(tenant, [Submission(task, "m", webhook=("http://localhost/", "key"))])
            store.cancel(tenant, made.job.id)
    now = store.now()
    assert [w.tenant for w in store.webhooks.take(now, 60.0, 9, 2, ["b"])] == ["a", "c", "a"]
    assert [w.tenant for w in store.webhooks.take(now, 60.0, 3, 2)] == ["a", "b", "a"]
    assert [w.tenant for w in store.webhooks.take(now, 60.0, 9, 9)] == ["a", "b"]


def test_a_job_and_its_webhook_are_there_together(quiet: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process that ends between two writes, and no store that is busy for the second, loses one."""

    def busy(*_: Any) -> None:
        raise StoreBusy("no second write")

    monkeypatch.setattr(Webhooks, "add", busy)
    quiet.client.post(f"/v1/jobs/{_asked(quiet, 'http://localhost/')}:cancel")
    batch = {"model": b"m", "requests": b'[{"devices": 2, "webhook": "http://localhost/b"}]'}
    (job,) = quiet.client.post("/v1/batches", files=batch).json()["jobs"]
    quiet.client.post(f"/v1/jobs/{job['id']}:cancel")
    assert len(quiet.store.webhooks.take(time.time(), 60.0, 9, 9)) == 2
