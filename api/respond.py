"""Answers with a body: validators, conditional requests and compression in one place."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from planner.api.errors import Problem

__all__ = ["REVALIDATE", "Packed", "accepted", "constant", "document", "matches", "represent"]

REVALIDATE: Final = "private, no-cache"  # to be kept, and asked for again each time: a removed plan is gone at once
_COMPRESSIBLE: Final = ("application/json", "text/html", "text/plain", "text/css", "text/javascript")
_WORTHWHILE: Final = 2048  # bytes
_CACHE_BYTES: Final = 32 * 2**20  # bytes of compressed answers
VARY: Final = "Accept-Encoding, Authorization, Cookie"

Load = Callable[[], Awaitable[bytes]]


class Packed:
    """Compressed bodies by digest, those used last."""

    def __init__(self) -> None:
        self.by_digest: OrderedDict[str, bytes] = OrderedDict()
        self.size = 0

    async def of(self, digest: str, load: Load) -> bytes:
        if (found := self.by_digest.get(digest)) is not None:
            self.by_digest.move_to_end(digest)
            return found
        packed = await asyncio.to_thread(gzip.compress, await load(), 5, mtime=0)
        if digest not in self.by_digest:
            self.by_digest[digest] = packed
            self.size += len(packed)
        while self.size > _CACHE_BYTES:
            self.size -= len(self.by_digest.popitem(last=False)[1])
        return packed


def _weights(header: str) -> dict[str, float]:
    """`text/html;q=0.5, */*` → weights by range; a malformed weight counts as 0."""
    out: dict[str, float] = {}
    for part in header.split(","):
        name, *parameters = (p.strip().lower() for p in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = min(1.0, max(0.0, float(parameter[2:])))
                except ValueError:
                    weight = 0.0
        if name:
            out[name] = weight
    return out


def accepted(request: Request, offered: Sequence[str]) -> str:
    """The media type the caller likes best, the first on offer among equals.  Problem where none is acceptable."""
    header = request.headers.get("accept", "")
    weights = _weights(header)
    if not weights:
        return offered[0]

    def weight(media: str) -> float:
        for pattern in (media, media.split("/")[0] + "/*", "*/*"):
            if pattern in weights:
                return weights[pattern]
        return 0.0

    best = max(offered, key=weight)
    if weight(best) <= 0:
        raise Problem("not-acceptable", f"Accept {header[:200]!r}: on offer are {', '.join(offered)}")
    return best


def _gzips(request: Request) -> bool:
    weights = _weights(request.headers.get("accept-encoding", ""))
    return weights.get("gzip", weights.get("*", 0.0)) > 0


def matches(header: str, tag: str) -> bool:
    """Whether one of the tags of `If-None-Match` or `If-Match` is this one, compressed or not."""
    tags = [t.strip().removeprefix("W/") for t in header.split(",")]
    return "*" in tags or f'"{tag}"' in tags or f'"{tag}.gzip"' in tags


async def represent(
    request: Request,
    load: Load,
    media_type: str,
    *,
    digest: str,
    size: int,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A body with the SHA-256 `digest`, or 304 where the caller has it; loaded only where it has to be sent."""
    tag = digest[:32]
    packed = size >= _WORTHWHILE and _compressible(media_type) and _gzips(request)
    response_headers = {"vary": VARY, "cache-control": REVALIDATE, **(headers or {})}
    response_headers["etag"] = f'"{tag}.gzip"' if packed else f'"{tag}"'
    known = request.headers.get("if-none-match")
    if known is not None and matches(known, tag):
        return Response(status_code=304, headers=response_headers)
    if packed:
        response_headers["content-encoding"] = "gzip"
    body = await (request.app.state.packed.of(digest, load) if packed else load())
    return Response(body, media_type=media_type, headers=response_headers)


async def constant(
    request: Request, body: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A body that is at hand, with its validator."""

    async def load() -> bytes:
        return body

    digest = hashlib.sha256(body).hexdigest()
    return await represent(request, load, media_type, digest=digest, size=len(body), headers=headers)


def document(
    request: Request, model: BaseModel, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """A JSON document that may differ the next time."""
    body = model.model_dump_json(by_alias=True, exclude_unset=True).encode()
    response_headers = {"vary": VARY, **(headers or {})}
    if len(body) >= _WORTHWHILE and _gzips(request):
        response_headers["content-encoding"] = "gzip"
        body = gzip.compress(body, 1, mtime=0)  # a page of a list at most: below a millisecond
    return Response(body, status_code=status, media_type="application/json", headers=response_headers)


def _compressible(media_type: str) -> bool:
    return media_type.split(";")[0].strip() in _COMPRESSIBLE
