"""The outermost layer: ids of requests, hosts and origins, sizes, HEAD, headers that hold for every answer, and what is
logged and counted.  Errors become problems here, whichever layer they come from."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner.api.errors import MEDIA_TYPE, Problem, from_store
from planner.api.jobs.errors import StoreDamaged, StoreError
from planner.api.limits import check_length, limited
from planner.api.logs import request_id_of
from planner.api.observe import Metrics
from planner.api.settings import Settings, is_loopback
from planner.api.spans import Spans
from planner.errors import UsageError
from planner.requests.wording import in_keywords

__all__ = ["Edge"]

_log = logging.getLogger("planner.service")

GONE: Final = 499  # logged and counted where the client went away before its request was there
SMALL_BODY: Final = 64 * 2**10  # of requests that carry no model
_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
NOTHING: Final = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
_EVERYWHERE: Final = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"permissions-policy": b"camera=(), geolocation=(), microphone=()",
    b"content-security-policy": NOTHING.encode(),
    b"x-frame-options": b"DENY",
    b"cache-control": b"no-store",
}
_HSTS: Final = (b"strict-transport-security", b"max-age=31536000")
_UNSAFE: Final = ("POST", "PUT", "PATCH", "DELETE")


class Edge:
    """ASGI middleware, inside the framework's own and outside of everything else.  `uploads`: paths that may be sent a
    model, and as many bytes as that takes; `damaged`: is told of a store that is of no more use."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        metrics: Metrics,
        uploads: frozenset[str],
        damaged: Callable[[StoreDamaged], None],
        spans: Spans | None = None,
    ) -> None:
        self.app, self.settings, self.metrics, self.uploads, self.damaged = app, settings, metrics, uploads, damaged
        self.spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(self, scope, receive, send)
        if self.spans is None or not scope["path"].startswith("/v1/"):
            await exchange.run()
            return
        with self.spans.request(exchange.method, exchange.headers) as span:
            await exchange.run()
            span.update_name(f"{exchange.method} {exchange.route}")
            span.set_attributes(exchange.described())

    def check(self, headers: Mapping[bytes, bytes], method: str) -> None:
        """Problem where the request is addressed to another host (a name that was rebound to this address), or comes
        from a page of another site."""
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if _host_of(f"http://{host}") != host:
            raise Problem("bad-request", f"Host {host[:100]!r} is no host")
        if self.settings.names:
            known: tuple[str, ...] = (*self.settings.names, *_LOOPBACK)
        else:
            own = self.settings.host.lower()
            known = (*_LOOPBACK, f"[{own}]" if ":" in own else own) if is_loopback(own) else (name,)
        if name not in known:
            raise Problem("host-unknown", f"Host {host[:100]!r} is not one of {', '.join(known)}; see --names")
        if method not in _UNSAFE:
            return
        origin = headers.get(b"origin")
        if origin is not None and _host_of(origin.decode("latin-1")) != host:
            raise Problem("origin-forbidden", f"Origin {origin.decode('latin-1')[:100]!r} is not this service's")
        if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            raise Problem("origin-forbidden", "Sec-Fetch-Site says that the request comes from another site")


def _host_of(origin: str) -> str | None:
    """None where it is no address at all."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


class _Exchange:
    """One request and its answer."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self.edge, self.scope, self.receive, self.out = edge, scope, receive, send
        self.scope_seen = scope  # as the application sees it, which notes the route there
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.id = request_id_of(self.headers.get(b"x-request-id"))
        self.method: str = scope["method"]
        self.status = 0
        self.sent = 0
        self.began = time.perf_counter()
        self.state: dict[str, Any] = scope.setdefault("state", {})
        self.state["request_id"] = self.id
        self.state["method"] = self.method  # the application sees GET in place of HEAD

    async def run(self) -> None:
        metrics = self.edge.metrics
        metrics.open.inc()
        try:
            await self._answer()
        finally:
            metrics.open.dec()
            if (leave := self.state.get("leave")) is not None:
                leave()
            self._note()

    async def _answer(self) -> None:
        scope, settings = self.scope, self.edge.settings
        try:
            self.edge.check(self.headers, self.method)
            limit = settings.upload_limit if scope["path"] in self.edge.uploads else SMALL_BODY
            check_length(self.headers.get(b"content-length"), limit)
            if self.method == "HEAD":
                scope = self.scope_seen = {**scope, "method": "GET"}
            await self.edge.app(scope, limited(self.receive, limit), self._send)
        except ClientDisconnect:  # nobody is there to be answered
            self.status = self.status or GONE
        except Exception as e:
            if isinstance(e, StoreDamaged):
                self.edge.damaged(e)
            problem = self._problem(e)
            if problem.status >= 500 and not isinstance(e, Problem):
                _log.error("fault", exc_info=e, extra={"fields": {"request_id": self.id, "path": self.scope["path"]}})
            if self.status:  # the answer has begun: all that is left is to end it short
                raise
            await self._refuse(problem)

    def _problem(self, e: Exception) -> Problem:
        if isinstance(e, Problem):
            return e
        if isinstance(e, StoreError):
            return from_store(e)
        if isinstance(e, UsageError):
            return Problem("usage", in_keywords(str(e)))
        if isinstance(e, OSError) and e.errno in (errno.ENOSPC, errno.EDQUOT):
            return Problem("storage-full", "the disk is full; nothing was accepted", headers={"Retry-After": "60"})
        return Problem("internal", f"request {self.id} met a fault of the service; it is in the log")

    async def _refuse(self, problem: Problem) -> None:
        self.edge.metrics.problems.labels(problem.fields.name).inc()
        body = problem.body(self.id)
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
        headers += [(k.lower().encode(), v.encode()) for k, v in problem.headers.items()]
        if problem.status == 401:
            headers.append((b"www-authenticate", b'Bearer realm="planner"'))
        await self._send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": self._with_common(message.get("headers", []))}
        elif message["type"] == "http.response.body":
            self.sent += len(message.get("body", b""))
            if self.method == "HEAD":
                message = {**message, "body": b""}
        await self.out(message)

    def _with_common(self, headers: Any) -> list[tuple[bytes, bytes]]:
        """The answer's own headers win."""
        given = [(k.lower(), v) for k, v in headers]
        names = {k for k, _ in given}
        for key, value in _EVERYWHERE.items():
            if key not in names:
                given.append((key, value))
        if self.edge.settings.https:
            given.append(_HSTS)
        rate = self.state.get("rate")
        if rate is not None:
            given += [
                (k.lower().encode(), v.encode()) for k, v in rate.headers().items() if k.lower().encode() not in names
            ]
        given.append((b"x-request-id", self.id.encode()))
        return given

    @property
    def route(self) -> str:
        return str(getattr(self.scope_seen.get("route"), "path", "other"))

    def described(self) -> dict[str, str | int]:
        """As OpenTelemetry names it."""
        return {
            "http.request.method": self.method,
            "http.route": self.route,
            "http.response.status_code": self.status,
            "planner.request_id": self.id,
        }

    def _note(self) -> None:
        seconds = time.perf_counter() - self.began
        route = self.route
        metrics = self.edge.metrics
        method = self.method if self.method in (*_UNSAFE, "GET", "HEAD", "OPTIONS") else "other"
        metrics.requests.labels(method, route, str(self.status)).inc()
        if not self.state.get("stream"):
            metrics.seconds.labels(method, route).observe(seconds)
        fields = {
            "request_id": self.id,
            "method": method,
            "path": self.scope["path"][:500],
            "status": self.status,
            "seconds": round(seconds, 6),
            "bytes": self.sent,
            "tenant": self.state.get("tenant"),
        }
        _log.info("request", extra={"fields": fields})
