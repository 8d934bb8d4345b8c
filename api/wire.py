"""HTTP on the wire: what is no request at all is refused by a problem too, below everything that knows of requests.

A head that is too long, or does not come, is refused here: the parser takes one of any length, and waits for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from planner.api.errors import MEDIA_TYPE, Problem
from planner.api.logs import request_id_of

__all__ = ["HEAD_BYTES", "HEAD_S", "Wire"]

HEAD_BYTES: Final = 64 * 2**10  # of a request line and headers, or of trailers
HEAD_S: Final = 30.0  # for them to come


class Wire(HttpToolsProtocol):
    """uvicorn's parser."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loose = 0  # bytes taken in that belong to no body and to no request that has begun
        self._in_request = False
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._in_request:
            self._expect_head()
        self._loose += len(data)
        super().data_received(data)
        if self._loose > HEAD_BYTES and not self.transport.is_closing():
            self._refuse(Problem("head-too-large", f"the request's head has more than {HEAD_BYTES} bytes"))

    def on_headers_complete(self) -> None:
        self._loose, self._in_request = 0, True
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._loose, self._in_request = 0, False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem("bad-request", msg.rstrip(".")))

    def _expect_head(self) -> None:
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(HEAD_S, self._too_late)

    def _head_is_there(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect_head()  # of the next request, while this one is being answered
        elif self._loose:
            self._refuse(Problem("body-timeout", f"the request's head did not come within {HEAD_S:g} s"))
        else:
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        request = request_id_of(None)
        body = problem.body(request)
        lines = (
            f"HTTP/1.1 {problem.status} {problem.kind.title}",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(body)}",
            f"x-request-id: {request}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "connection: close",
        )
        if self.cycle is None or self.cycle.response_complete:  # else it would stand in the middle of an answer
            self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()
