"""What passes between the store and a child, whose folder is all that the child sees of it.

in/     inputs by name, links to blobs; the child cannot write here
work/   where it works
out/    its results, which the worker takes as they are when the child says that they are there
log     what it printed
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from planner import version
from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.blobs import Blob
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreFull, StoreUnusable

__all__ = ["CODE", "WRITTEN", "ResultInvalid", "Taken", "hand_out", "lay_in", "size_of", "take_in"]

CODE: Final = "code"
WRITTEN: Final = ("work", "out")  # by the child
FILES: Final = 1000  # of a result
PIECE: Final = 1 << 20
_PACKAGE: Final = Path(version.__file__).resolve().parent
_NAME: Final = re.compile(r"[ -~]{1,200}")  # of the database and of headers: nothing that either cannot hold
_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]+(; charset=utf-8)?|")

Taken = tuple[dict[str, Blob], str | None]


class ResultInvalid(Exception):
    """What a child left is not what it said; it is not to be trusted with more."""


def lay_in(blobs: BlobStore, inputs: Mapping[str, str], folder: Path) -> None:
    """Makes the folder of a child, with its inputs.  What is not kept any more is not there.  OSError, StoreBusy,
    StoreUnusable."""
    for name in ("in", *WRITTEN, CODE):
        (folder / name).mkdir(parents=True, mode=0o700)
    (folder / CODE / "planner").symlink_to(_PACKAGE)
    for name, digest in inputs.items():
        with contextlib.suppress(BlobMissing, BlobDamaged):
            blobs.lay(digest, folder / "in" / name)


def hand_out(folder: Path, files: Mapping[str, tuple[bytes, str]], plan: bytes | None) -> dict[str, Any]:
    """Leaves a result for the worker: the message about it.  OSError."""
    said: dict[str, list[Any]] = {}
    known: str | None = None
    for k, (name, (content, media_type)) in enumerate(files.items()):
        (folder / "out" / str(k)).write_bytes(content)
        said[name] = [k, media_type]
        if content == plan:
            known = name
    if plan is not None and known is None:
        raise ValueError("a plan is one of the files of its result")
    return {"files": said, "plan": known}


def size_of(folder: Path) -> int:
    """Bytes of what a child left.  ResultInvalid."""
    try:
        with os.scandir(folder / "out") as found:
            entries = list(islice(found, FILES + 1))  # of millions a worker would be counted as one that hangs
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError as e:
        raise ResultInvalid(f"what it left cannot be looked at ({e.strerror})") from e
    if len(entries) > FILES:
        raise ResultInvalid(f"more than {FILES} files")
    return size


def take_in(blobs: BlobStore, folder: Path, files: Mapping[str, Sequence[Any]], plan: str | None, limit: int) -> Taken:
    """Keeps what a child left, by name, and the id of its plan.

    ResultInvalid where that is not as it said, or has more bytes than `limit`; StoreError.
    """
    if len(files) > FILES or (plan is not None and plan not in files):
        raise ResultInvalid(f"{len(files)} files, of which {plan!r} is to be the plan")
    kept: dict[str, Blob] = {}
    for name, file in files.items():
        if len(file) != 2:
            raise ResultInvalid(f"file {name[:80]!r}: expected a number and a type, found {len(file)} values")
        number, media_type = file
        if type(number) is not int or not _NAME.fullmatch(name) or not _MEDIA_TYPE.fullmatch(str(media_type)):
            raise ResultInvalid(f"file {name[:80]!r}: number {number!r}, of type {media_type!r}")
        digest, size = _keep(blobs, folder / "out" / str(number), limit)
        limit -= size
        kept[name] = Blob(digest, media_type, size)
    return kept, None if plan is None else kept[plan].digest[:32]


def _keep(blobs: BlobStore, path: Path, limit: int) -> tuple[str, int]:
    """A copy becomes a blob: whatever still has the child's file open can change that alone."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise ResultInvalid(f"{path.name}: cannot be read ({e.strerror})") from e
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ResultInvalid(f"{path.name}: no file")
        if os.fstat(file.fileno()).st_size <= PIECE:
            content = file.read(PIECE + 1)
            _within(len(content), min(limit, PIECE))
            return blobs.put(content), len(content)
        return _spooled(blobs, iter(lambda: file.read(PIECE), b""), limit)


def _spooled(blobs: BlobStore, pieces: Iterable[bytes], limit: int) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    spool = blobs.spool()
    try:
        for piece in pieces:
            size += len(piece)
            _within(size, limit)
            digest.update(piece)
            spool.write(piece)
        blobs.adopt(spool, digest.hexdigest())
    except BaseException as e:
        with contextlib.suppress(OSError):
            os.unlink(spool.name)
        with contextlib.suppress(OSError):
            spool.close()
        if isinstance(e, OSError):
            kind = StoreFull if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreUnusable
            raise kind(f"{Path(spool.name).parent}: a result cannot be kept ({e.strerror})") from e
        raise
    return digest.hexdigest(), size


def _within(size: int, limit: int) -> None:
    if size > limit:
        raise ResultInvalid(f"more than {limit} bytes")
