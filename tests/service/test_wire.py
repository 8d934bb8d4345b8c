"""What a connection may hold before there is a request on it, over real sockets."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planner.api import wire
from tests.service.http import ONNX
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


def _takes(connection: socket.socket, sent: bytes) -> bool:
    try:
        connection.sendall(sent)
    except (BrokenPipeError, ConnectionResetError):
        return False
    return True


def _held(running: Running, connection: socket.socket) -> bool:
    """Whether the server still has the other end."""
    here = connection.getsockname()
    return any(getattr(c, "client", None) == here for c in list(running.server.server_state.connections))


def _patiently(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("it did not come about within 10 s")


@pytest.mark.parametrize("size", [3_000_000, 60_000])
def test_a_reader_that_takes_nothing_is_cut_off(running: Running, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Also where all of the answer was handed to the connection, which waits for it to be taken."""
    monkeypatch.setattr(wire.Wire, "stall_s", 0.2)
    job = running.http.post("/v1/plans?devices=4", content=b"m", headers=ONNX).json()
    running.work({"plan.json": os.urandom(size)})
    plan = running.http.get(job["links"]["self"]).json()["plan"]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((running.http.base_url.host, running.http.base_url.port or 0))
        connection.sendall(f"GET /v1/plans/{plan} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        _patiently(lambda: _held(running, connection))
        _patiently(lambda: not _held(running, connection))
    _patiently(lambda: not running.app.state.service.open)
    assert running.http.get("/healthz").status_code == 200


def test_a_slow_reader_gets_all(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire.Wire, "stall_s", 0.3)
    content = os.urandom(150_000)
    job = running.http.post("/v1/plans?devices=4", content=b"m", headers=ONNX).json()
    running.work({"plan.json": content})
    plan = running.http.get(job["links"]["self"]).json()["plan"]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((running.http.base_url.host, running.http.base_url.port or 0))
        connection.sendall(f"GET /v1/plans/{plan} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
        got = b""
        while chunk := connection.recv(16384):
            got += chunk
            time.sleep(0.015)
    assert got.endswith(content)


def test_a_body_that_trickles_behind_its_answer_ends_with_the_connection(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.1)
    with _open(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\nab")
        assert connection.recv(12) == b"HTTP/1.1 200"
        _patiently(lambda: not _takes(connection, b"c"))
    with _open(running) as connection:  # one that comes in time costs nothing
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\na")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"bGET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
        assert _rest(connection).startswith(b"HTTP/1.1 200")


def test_the_body_of_a_request_behind_one_that_is_answered_may_take_its_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "LINGER_S", 0.05)
    first = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    head = b"POST /v1/plans?devices=4 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/octet-stream\r\n"
    with _open(running) as connection:
        connection.sendall(first + head + b"connection: close\r\ncontent-length: 2\r\n\r\na")
        assert connection.recv(12) == b"HTTP/1.1 200"
        time.sleep(0.2)
        connection.sendall(b"b")
        assert b"HTTP/1.1 202 " in _rest(connection)


def test_an_address_has_so_many_connections(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    running.http.close()
    _patiently(lambda: not running.server.server_state.connections)
    monkeypatch.setattr(wire.Wire, "most", 2)
    with _open(running) as first, _open(running) as second:
        for connection in (first, second):
            connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        with _open(running) as third:
            answer = _rest(third)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert b"retry-after: 5\r\n" in answer
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "urn:planner:problem:rate-limited"
    _patiently(lambda: not running.server.server_state.connections)
    with _open(running) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"


def test_connections_are_counted_by_address_and_network() -> None:
    assert wire.network_of(("10.0.0.1", 5)) == wire.network_of(("::ffff:10.0.0.1", 6)) == "10.0.0.1"
    assert wire.network_of(("2001:db8::1", 5)) == wire.network_of(("2001:db8::ffff:1", 6)) == "2001:db8::/64"
    assert wire.network_of(("2001:db8:1::1", 5)) != wire.network_of(("2001:db8::1", 5))
    assert wire.network_of(("fe80::1%eth0", 5)) == "fe80::/64"
    assert wire.network_of(None) == ""
    made = wire.Wire.of(3.0, 7)
    assert (made.stall_s, made.most) == (3.0, 7)
    assert made.open is not wire.Wire.open
