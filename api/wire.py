"""HTTP on the wire: what is no request at all is refused by a problem too, below everything that knows of requests."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.errors import MEDIA_TYPE, Problem
from api.logs import request_id_of

__all__ = ["Wire"]


class Wire(HttpToolsProtocol):
    """uvicorn's parser."""

    def send_400_response(self, msg: str) -> None:
        request = request_id_of(None)
        body = Problem("bad-request", msg.rstrip(".")).body(request)
        lines = (
            "HTTP/1.1 400 Bad Request",
            f"content-type: {MEDIA_TYPE}",
            f"content-length: {len(body)}",
            f"x-request-id: {request}",
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "connection: close",
        )
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()
