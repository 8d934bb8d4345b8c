"""Answers with a body: validators, conditional requests and compression in one place."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from planner.api.bodies import IN_MEMORY, Content, Filed, Held, filed, packed, pieces, whole
from planner.api.errors import Problem

__all__ = ["REVALIDATE", "Packed", "accepted", "constant", "document", "matches", "represent"]

REVALIDATE: Final = "private, no-cache"  # to be kept, and asked for again each time: a removed plan is gone at once
_COMPRESSIBLE: Final = ("application/json", "text/html", "text/plain", "text/css", "text/javascript")
_WORTHWHILE: Final = 2048  # bytes
_KEPT_BYTES: Final[Mapping[type, int]] = {Held: 16 * 2**20, Filed: 512 * 2**20}  # of compressed bodies
_KEPT: Final[Mapping[type, int]] = {Held: 10_000, Filed: 128}  # of them; each file takes a descriptor of the server
VARY: Final = "Accept-Encoding, Authorization, Cookie"

Load = Callable[[], Awaitable[Content]]


class Packed:
    """Compressed bodies by digest, those used last: small ones in memory, large ones in files of the folder."""

    def __init__(self, folder: Path) -> None:
        with contextlib.suppress(OSError):  # where the store lies elsewhere, nothing has made it yet
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._by_digest: OrderedDict[str, Content] = OrderedDict()
        self._begun: dict[str, asyncio.Task[Content]] = {}
        self._sizes, self._counts = dict.fromkeys(_KEPT_BYTES, 0), dict.fromkeys(_KEPT, 0)

    async def of(self, digest: str, load: Load) -> Content:
        """However many ask for it at once, it is made once.  OSError where there is no room for it."""
        if (found := self._by_digest.get(digest)) is not None:
            self._by_digest.move_to_end(digest)
            return found
        task = self._begun.get(digest)
        if task is None:
            task = self._begun[digest] = asyncio.create_task(self._made(digest, load))
            task.add_done_callback(lambda _: self._begun.pop(digest))
        return await asyncio.shield(task)

    async def _made(self, digest: str, load: Load) -> Content:
        made = await asyncio.to_thread(packed, await load(), self.folder)
        self._by_digest[digest] = made
        self._sizes[type(made)] += made.size
        self._counts[type(made)] += 1
        for kind, most in _KEPT_BYTES.items():
            while self._sizes[kind] > most or self._counts[kind] > _KEPT[kind]:
                oldest = next(d for d, content in self._by_digest.items() if type(content) is kind)
                self._sizes[kind] -= self._by_digest.pop(oldest).size
                self._counts[kind] -= 1
        return made


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
    compressed = size >= _WORTHWHILE and _compressible(media_type) and _gzips(request)
    response_headers = {"vary": VARY, "cache-control": REVALIDATE, **(headers or {})}
    response_headers["etag"] = f'"{tag}.gzip"' if compressed else f'"{tag}"'
    known = request.headers.get("if-none-match")
    if known is not None and matches(known, tag):
        return Response(status_code=304, headers=response_headers)
    if compressed:
        try:
            body = await request.app.state.packed.of(digest, load)
        except OSError:  # no room for it: as it is, then
            compressed = False
            response_headers["etag"] = f'"{tag}"'
    if compressed:
        response_headers["content-encoding"] = "gzip"
    else:
        body = await load()
    return _answer(request, body, media_type, response_headers)


async def constant(
    request: Request, body: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A body that is at hand, with its validator."""

    async def load() -> Content:
        return Held(body)

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
    content = Held(body) if len(body) <= IN_MEMORY else filed(body, request.app.state.packed.folder)
    return _answer(request, content, "application/json", response_headers, status)


def _answer(
    request: Request, body: Content, media_type: str, headers: Mapping[str, str], status: int = 200
) -> Response:
    if body.size <= IN_MEMORY:
        return Response(whole(body), status_code=status, media_type=media_type, headers=headers)
    headers = {**headers, "content-length": str(body.size)}
    if request.state.method == "HEAD":
        return Response(status_code=status, media_type=media_type, headers=headers)
    return StreamingResponse(pieces(body), status_code=status, media_type=media_type, headers=headers)


def _compressible(media_type: str) -> bool:
    return media_type.split(";")[0].strip() in _COMPRESSIBLE
