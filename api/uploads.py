"""Models and constraints on their way from the network to a blob: hashed as they arrive, never in memory twice."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import Request

from planner.api.errors import Problem
from planner.api.jobs.blob_store import BlobStore

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

__all__ = ["BODY_TYPES", "IN_MEMORY", "Upload", "received"]

BODY_TYPES: Final = ("application/octet-stream", "multipart/form-data")
IN_MEMORY: Final = 128 * 2**10  # larger ones go by way of a file: a thousand senders that take their time hold little
_HEADER: Final = 8192  # bytes of a part's headers
Run = Callable[..., Awaitable[Any]]
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


class _Piece:
    """One file as it arrives: in memory while it is small, else in a file that becomes the blob."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self.hash = hashlib.sha256()
        self.size = 0
        self.chunks: list[bytes] = []
        self.file: IO[bytes] | None = None

    def write(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self.chunks.append(chunk)
        if self.file is None and self.size > IN_MEMORY:
            self.file = self.blobs.spool()
        if self.file is not None:
            for piece in self.chunks:
                self.hash.update(piece)
            self.file.writelines(self.chunks)
            self.chunks.clear()

    def digest(self) -> str:
        """Once all of it is there."""
        for piece in self.chunks:
            self.hash.update(piece)
        return self.hash.hexdigest()

    async def keep(self, digest: str, run: Run) -> None:
        """Makes it a blob."""
        if self.file is not None:
            await run(self.blobs.adopt, self.file, digest)
        elif not self.blobs.remote and digest in self.blobs:
            self.blobs.put(b"".join(self.chunks))  # nothing to be written: not worth a thread
        else:
            await run(self.blobs.put, b"".join(self.chunks))

    def content(self) -> bytes:
        """All of it."""
        if self.file is None:
            return b"".join(self.chunks)
        self.file.seek(0)
        return self.file.read()

    def drop(self) -> None:
        if self.file is not None:
            Path(self.file.name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # a full disk does not take what was still to be written
                self.file.close()


@dataclass(slots=True)
class Upload:
    """Digests by part, `model` and perhaps `constraints`; `stem` of the model's file name, if given."""

    digests: dict[str, str] = field(default_factory=dict)
    size: int = 0
    stem: str | None = None
    pieces: dict[str, _Piece] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes by digest."""
        return {self.digests[name]: piece.size for name, piece in self.pieces.items()}

    def take(self, name: str, most: int) -> bytes:
        """The content of a part, which is no part of the upload any more.  Problem where it has more than `most`
        bytes."""
        piece = self.pieces.pop(name)
        if piece.size > most:
            raise _bad(name, f"{name}: expected {most} bytes at most, found {piece.size}")
        del self.digests[name]
        self.size -= piece.size
        return piece.content()

    async def keep(self, run: Run) -> None:
        """Makes all of it blobs, by `run`, which takes calls that block; without that, nothing of it is left."""
        for name, piece in self.pieces.items():
            await piece.keep(self.digests[name], run)


@asynccontextmanager
async def received(request: Request, blobs: BlobStore, parts: Collection[str]) -> AsyncIterator[Upload]:
    """`parts`: those that a form may have.  Within the block the upload may be kept.

    Problem where the body is of another type, malformed, too large, too slow, or there is no model in it."""
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise Problem(
            "unsupported-media-type",
            f"Content-Encoding {coding[:100]!r}: send the model as it is",
            more={"expected": list(BODY_TYPES)},
            headers={"Accept-Encoding": "identity"},
        )
    media, parameters = parse_options_header(request.headers.get("content-type"))
    pieces: dict[str, _Piece] = {}
    out = Upload()
    try:
        if media == b"application/octet-stream":
            pieces["model"] = piece = _Piece(blobs)
            async for chunk in request.stream():
                piece.write(chunk)
        elif media == b"multipart/form-data":
            form = _Form(parameters.get(b"boundary"), parts, lambda: _Piece(blobs), pieces)
            async for chunk in request.stream():
                form.feed(chunk)
            form.end()
            out.stem = form.stem
        else:
            found = request.headers.get("content-type", "none")[:100]
            raise Problem(
                "unsupported-media-type",
                f"Content-Type {found!r}: expected {' or '.join(BODY_TYPES)}",
                more={"expected": list(BODY_TYPES)},
                headers={"Accept-Post": ", ".join(BODY_TYPES)},
            )
        if not pieces.get("model", _NONE).size:
            raise _bad("model", "the body holds no model; send the bytes of an ONNX file")
        for name, piece in pieces.items():
            out.pieces[name], out.digests[name] = piece, piece.digest()
            out.size += piece.size
        yield out
    finally:
        for piece in pieces.values():
            piece.drop()


class _Empty:
    size = 0


_NONE: Any = _Empty()


def _bad(name: str, detail: str) -> Problem:
    return Problem("validation", detail, errors=[{"in": "body", "name": name, "detail": detail}])


class _Form:
    """The parts of a multipart body, as they arrive; each goes to a piece of its own."""

    def __init__(
        self, boundary: bytes | None, parts: Collection[str], new: Callable[[], _Piece], pieces: dict[str, _Piece]
    ) -> None:
        if not boundary:
            raise _bad("boundary", "Content-Type multipart/form-data has no boundary")
        self.parts, self.new, self.pieces = parts, new, pieces
        self.stem: str | None = None
        self.piece: _Piece | None = None
        self.headers: dict[bytes, bytes] = {}
        self.name, self.value = b"", b""
        self.complete = False
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._begin,
            "on_header_field": self._field,
            "on_header_value": self._value,
            "on_header_end": self._header,
            "on_headers_finished": self._opened,
            "on_part_data": self._data,
            "on_end": self._end,
        }
        try:
            self.parser = MultipartParser(boundary, callbacks)
        except FormParserError as e:
            raise _bad("boundary", str(e)) from e

    def feed(self, chunk: bytes) -> None:
        try:
            self.parser.write(chunk)
        except FormParserError as e:
            raise _bad("body", f"not a multipart body: {e}") from e

    def end(self) -> None:
        if not self.complete:
            raise _bad("body", "the multipart body ends before its last boundary")

    def _begin(self) -> None:
        self.headers, self.name, self.value, self.piece = {}, b"", b"", None

    def _field(self, data: bytes, start: int, end: int) -> None:
        self.name += data[start:end]
        self._bounded()

    def _value(self, data: bytes, start: int, end: int) -> None:
        self.value += data[start:end]
        self._bounded()

    def _bounded(self) -> None:
        if len(self.name) + len(self.value) > _HEADER or len(self.headers) > 8:
            raise _bad("body", "the headers of a part are too long")

    def _header(self) -> None:
        self.headers[self.name.lower()] = self.value
        self.name, self.value = b"", b""

    def _opened(self) -> None:
        _, disposition = parse_options_header(self.headers.get(b"content-disposition", b""))
        part = disposition.get(b"name", b"").decode("utf-8", "replace")
        if part not in self.parts:
            raise _bad(
                part[:100] or "body",
                f"part {part[:100]!r}: expected {' or '.join(self.parts)}; options go in the query",
            )
        if part in self.pieces:
            raise _bad(part, f"there are two parts {part!r}")
        self.piece = self.pieces[part] = self.new()
        if part == "model" and b"filename" in disposition:
            name = PurePosixPath(disposition[b"filename"].decode("utf-8", "replace").replace("\\", "/")).stem
            self.stem = _NOT_IN_NAMES.sub("_", name).lstrip(".-")[:100] or None

    def _data(self, data: bytes, start: int, end: int) -> None:
        assert self.piece is not None
        self.piece.write(data[start:end])

    def _end(self) -> None:
        self.complete = True
