"""HTTP on the wire: what is no request at all is refused by a problem too, below everything that knows of requests.

A head that is too long, or does not come, is refused here: the parser takes one of any length, and waits for ever.
So is a reader that takes nothing of its answer cut off, and one connection too many of an address refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import Counter
from typing import Any, ClassVar, Final, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from planner.api.errors import MEDIA_TYPE, Problem
from planner.api.logs import request_id_of

__all__ = ["HEAD_BYTES", "HEAD_S", "LINGER_S", "Wire", "network_of"]

HEAD_BYTES: Final = 64 * 2**10  # of a request line and headers, or of trailers
HEAD_S: Final = 30.0  # for them to come
LINGER_S: Final = 5.0  # for the rest of a body that was answered before it was there
UNSENT_BYTES: Final = 32 * 2**10  # of an answer, here and again in the kernel, for a reader that does not take them
NOTSENT_LOWAT: Final = getattr(socket, "TCP_NOTSENT_LOWAT", 25)  # Linux's number; Python names it from 3.12 on


def network_of(client: tuple[str, int] | None) -> str:
    """The address that connections and logins are counted by: of IPv6 the network, as one machine has all of it."""
    if client is None:
        return ""
    try:
        address = ipaddress.ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if address.version == 4:
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class Wire(HttpToolsProtocol):
    """uvicorn's parser.  `of` makes one with the limits of a service."""

    stall_s: ClassVar[float] = 30.0  # in which a reader takes something of its answer
    most: ClassVar[int] = 0  # connections of one address; 0: any number
    open: ClassVar[Counter[str]] = Counter()  # of each address

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loose = 0  # bytes taken in that belong to no body and to no request that has begun
        self._in_request = False
        self._late: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._unsent = 0  # bytes not taken when the reader was last looked at
        self._address = ""

    @classmethod
    def of(cls, stall_s: float, most: int) -> type[Wire]:
        return type("Wire", (cls,), {"stall_s": stall_s, "most": most, "open": Counter()})

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES)
        wire = transport.get_extra_info("socket")
        if wire is not None and wire.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                wire.setsockopt(socket.IPPROTO_TCP, NOTSENT_LOWAT, UNSENT_BYTES)
        self._address = network_of(self.client)
        self.open[self._address] += 1
        if self.most and self.open[self._address] > self.most:
            message = f"{self.most} connections of this address are open already; close some"
            self._refuse(Problem("rate-limited", message, headers={"Retry-After": "5"}))
        else:
            self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._body_is_there()
        self._reader_is_well()
        self.open[self._address] -= 1
        if not self.open[self._address]:
            del self.open[self._address]
        super().connection_lost(exc)

    # What the reader takes

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        self._reader_is_well()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        answered = self.cycle.response_complete  # the request whose body comes, not one before it
        if self._in_request and answered and not self.transport.is_closing() and self._lingering is None:
            # The answer did not wait for the rest of the body: nor does the connection, for long.
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self.transport.close)
        if not self.flow.write_paused:
            self._reader_is_well()
            self._watch_reader()  # also of what has been written last: closing waits for it to be taken

    def _watch_reader(self) -> None:
        self._unsent = self.transport.get_write_buffer_size()
        if self._stalled is None and (self._unsent or self.flow.write_paused):
            self._stalled = asyncio.get_running_loop().call_later(self.stall_s, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._stalled = None
        unsent = self.transport.get_write_buffer_size()
        done = self.cycle is None or self.cycle.response_complete
        if unsent and unsent >= self._unsent and (done or self.flow.write_paused):
            self.transport.abort()
        else:
            self._watch_reader()

    def _reader_is_well(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    # What the sender sends

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
        self._body_is_there()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem("bad-request", msg.rstrip(".")))

    def _body_is_there(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None

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
            *(f"{name.lower()}: {value}" for name, value in problem.headers.items()),
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "connection: close",
        )
        if self.cycle is None or self.cycle.response_complete:  # else it would stand in the middle of an answer
            self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()
