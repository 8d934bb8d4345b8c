"""Files named by the SHA-256 of their content.

A blob is written beside its place, synced, and renamed into it, so that it is there whole or not at all, also after a
power failure; only then may a row of the database name it.  Reading checks the digest.  A blob that no row names yet is
protected by its age: purging leaves what was written, or offered again, within the last hour (`YOUNG`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from planner.api.jobs.database import Transaction
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreFull, StoreUnusable
from planner.files import replace_file

__all__ = ["YOUNG", "Blob", "Blobs", "digest_bytes", "is_digest"]

_PIECE = 1 << 20
ROOM = 2**20  # bytes that a folder has room for while it is of use
REMOVED_S = 1.0  # for which a removal waits for writers
YOUNG = 3600.0  # seconds for which a blob needs no row


def digest_bytes(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def is_digest(name: str) -> bool:
    """Whether it is a SHA-256 in hex."""
    return len(name) == 64 and all(c in "0123456789abcdef" for c in name)


@dataclass(frozen=True, slots=True)
class Blob:
    """A named piece of a result; `size` in bytes."""

    digest: str
    media_type: str
    size: int


@dataclass(frozen=True, slots=True)
class Blobs:
    """Any number of processes may use a folder at once; `remote`: it is another machine's."""

    folder: Path
    remote: bool = False

    def put(self, content: bytes) -> str:
        """Keeps the content; its digest.  Once this returns it survives a crash.

        StoreFull where no space is left, StoreUnusable where the folder cannot be written to.
        """
        digest = digest_bytes(content)
        path = self.path(digest)
        try:
            with self._holding(fcntl.LOCK_SH):
                if _size(path) == len(content):
                    os.utime(path)  # young again
                else:
                    _make_folder(path.parent)
                    replace_file(path, content, prefix=".tmp-", sync=True)
                    sync_folder(path.parent)
        except OSError as e:
            raise _unusable(self.folder, e) from e
        return digest

    def spool(self) -> IO[bytes]:
        """A file to write to that `adopt` can make a blob; purging removes one that was left."""
        folder = self.folder / "00"
        try:
            _make_folder(folder)
            return tempfile.NamedTemporaryFile(dir=folder, prefix=".tmp-", delete=False)
        except OSError as e:
            raise _unusable(self.folder, e) from e

    def expect_room(self) -> None:
        """StoreFull, StoreUnusable: where not even a small file can be written."""
        with self.spool() as file:
            try:
                os.posix_fallocate(file.fileno(), 0, ROOM)
            except OSError as e:
                raise _unusable(self.folder, e) from e
            finally:
                os.unlink(file.name)

    def adopt(self, file: IO[bytes], digest: str) -> None:
        """Makes a spooled file, whose content has this digest, a blob without a copy; errors as of `put`."""
        path = self.path(digest)
        try:
            file.flush()
            size = file.tell()
            with self._holding(fcntl.LOCK_SH):
                if _size(path) == size:
                    os.utime(path)  # young again
                    os.unlink(file.name)
                else:
                    os.fsync(file.fileno())
                    _make_folder(path.parent)
                    os.replace(file.name, path)
                    sync_folder(path.parent)
            file.close()
        except OSError as e:
            raise _unusable(self.folder, e) from e

    def read(self, digest: str) -> bytes:
        """BlobMissing, BlobDamaged."""
        path = self.path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None
        except OSError as e:
            raise BlobDamaged(f"blob {digest}: cannot be read ({e.strerror})") from e
        if digest_bytes(content) != digest:
            with contextlib.suppress(OSError):
                path.unlink()  # so that the same content can be kept again
            raise BlobDamaged(f"blob {digest}: its file has other content, and was removed")
        return content

    def content(self, digest: str) -> Iterator[bytes]:
        try:
            with self.path(digest).open("rb") as file:
                yield from iter(lambda: file.read(_PIECE), b"")
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None

    def lay(self, digest: str, target: Path) -> None:
        path = self.path(digest)
        try:
            try:
                os.link(path, target)
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without links
                shutil.copyfile(path, target)
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None

    def open(self, digest: str) -> IO[bytes]:
        """The file at its beginning, once all of it was compared with the digest.  BlobMissing, BlobDamaged."""
        path = self.path(digest)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept") from None
        except OSError as e:
            raise BlobDamaged(f"blob {digest}: cannot be read ({e.strerror})") from e
        try:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == digest
        except OSError as e:
            file.close()
            raise BlobDamaged(f"blob {digest}: cannot be read ({e.strerror})") from e
        if not whole:
            file.close()
            with contextlib.suppress(OSError):
                path.unlink()  # so that the same content can be kept again
            raise BlobDamaged(f"blob {digest}: its file has other content, and was removed")
        file.seek(0)
        return file

    def remove(self, digest: str, keep: Callable[[str], bool]) -> None:
        """A blob that is not to `keep`, where it is there; writers wait meanwhile, as of `purge`, to which it is left
        where others hold the folder for long, as a backup does."""
        until = time.monotonic() + REMOVED_S
        while time.monotonic() < until:
            with contextlib.suppress(FileNotFoundError, BlockingIOError), self._holding(fcntl.LOCK_EX | fcntl.LOCK_NB):
                if not keep(digest):
                    self.path(digest).unlink()
                return
            if digest not in self:
                return
            time.sleep(0.01)

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and is_digest(digest) and self.path(digest).is_file()

    def path(self, digest: str) -> Path:
        """Where the blob lies.  ValueError for what is no digest, so that no name from outside becomes a path."""
        if not is_digest(digest):
            raise ValueError(f"expected 64 hexadecimal digits, found {digest[:80]!r}")
        return self.folder / digest[:2] / digest

    def hold(self, db: Transaction, digests: Collection[str]) -> bool:
        return all(digest in self for digest in digests)

    def join(self, db: Transaction, digest: str) -> int:
        size = _size(self.path(digest))
        if size is None:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept")
        return size

    def missing(self, digests: Collection[str]) -> list[str]:
        return [digest for digest in digests if digest not in self]

    def digests(self) -> Iterator[str]:
        """All that are kept."""
        for path in self._files():
            if is_digest(path.name):
                yield path.name

    def purge(self, keep: Callable[[str], bool], *, young_s: float = YOUNG) -> tuple[int, int]:
        """Removes blobs neither young nor to `keep`, and unfinished files as old; how many, and their bytes."""
        removed = freed = 0
        oldest = time.time() - young_s
        for path in self._files():
            # Writers wait for the moment that one blob takes: nothing becomes young between the look and the removal.
            with contextlib.suppress(FileNotFoundError), self._holding(fcntl.LOCK_EX):
                status = path.stat()
                if status.st_mtime > oldest or (is_digest(path.name) and keep(path.name)):
                    continue
                path.unlink()
                removed += 1
                freed += status.st_size
        return removed, freed

    def _files(self) -> Iterator[Path]:
        for folder in sorted(self.folder.glob("[0-9a-f][0-9a-f]")):
            yield from sorted(folder.iterdir())

    @contextlib.contextmanager
    def _holding(self, how: int) -> Iterator[None]:
        _make_folder(self.folder)
        lock = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, how)
            yield
        finally:
            os.close(lock)


def sync_folder(folder: Path) -> None:
    """Makes names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_folder(folder: Path) -> None:
    """The folder, its name as durable as what will be written into it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    sync_folder(folder.parent)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _unusable(folder: Path, e: OSError) -> StoreFull | StoreUnusable:
    if e.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"{folder}: no space is left ({e.strerror}); nothing was kept")
    return StoreUnusable(f"{folder}: cannot be written to ({e.strerror})")
