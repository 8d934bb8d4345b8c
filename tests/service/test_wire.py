"""What a connection may hold before there is a request on it, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.api import wire
from tests.service.test_http_events import Running


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(wire, "HEAD_S", 0.3)
    found = Running(tmp_path)
    yield found
    found.http.close()
    found.stop()


def _open(running: Running) -> socket.socket:
    url = running.http.base_url
    return socket.create_connection((url.host, url.port or 0), timeout=10)


def _rest(connection: socket.socket) -> bytes:
    out = b""
    try:
        while chunk := connection.recv(65536):
            out += chunk
    except ConnectionResetError:  # it closed before it had read all
        pass
    return out


@pytest.mark.parametrize(
    "head",
    [b"GET /healthz?a=%s", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\na: %s", b"POST /v1/plans HTTP/1.1\r\n%s: a"],
    ids=["line", "value", "name"],
)
def test_a_head_without_end_is_refused(running: Running, head: bytes) -> None:
    with _open(running) as connection:
        connection.sendall(head % (b"a" * 80_000))
        answer = _rest(connection)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:planner:problem:head-too-large"


def test_trailers_without_end_are_refused(running: Running) -> None:
    begun = b"POST /v1/plans?devices=4 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
    with _open(running) as connection:
        connection.sendall(begun + b"transfer-encoding: chunked\r\n\r\n1\r\nm\r\n0\r\n")
        trailers = b"".join(b"t%d: %s\r\n" % (k, b"a" * 1000) for k in range(1000))
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(100 * trailers)
        assert running.store.jobs("local") == []


@pytest.mark.parametrize("begun", [b"", b"\r\n", b"GET /healthz HTTP/1.1\r\nhost: 127", b"\r\n\r\nGET"])
def test_a_connection_that_asks_nothing_is_closed(running: Running, begun: bytes) -> None:
    with _open(running) as connection:
        connection.sendall(begun)
        answer = _rest(connection)
    assert answer[:13] == (b"HTTP/1.1 408 " if begun else b"")


def test_one_that_asks_may_take_its_time_for_the_answer_and_for_the_body(running: Running) -> None:
    job = running.http.post("/v1/plans?devices=4", content=b"m", headers={"content-type": "application/octet-stream"})
    waited = running.http.get(job.json()["links"]["self"], headers={"prefer": "wait=1"})
    assert waited.json()["status"] == "queued"
    head = b"POST /v1/plans?devices=8 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
    with _open(running) as connection:
        connection.sendall(head + b"connection: close\r\ncontent-length: 200000\r\n\r\n")
        for _ in range(4):
            connection.sendall(b"m" * 50_000)
            time.sleep(0.15)
        assert _rest(connection).startswith(b"HTTP/1.1 202 ")
