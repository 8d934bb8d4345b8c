"""What the store asks of wherever its blobs lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Protocol

from planner.api.jobs.database import Transaction

__all__ = ["BlobStore"]


class BlobStore(Protocol):
    """Content by its SHA-256.  Any number of processes may use one at once."""

    @property
    def remote(self) -> bool:
        """Whether it may take longer than an event loop should wait."""

    def put(self, content: bytes) -> str:
        """Keeps the content; its digest.  Once this returns it is durable.  StoreFull, StoreUnusable, StoreBusy."""

    def spool(self) -> IO[bytes]:
        """A file to write to that `adopt` can make a blob; one that is left is removed later."""

    def adopt(self, file: IO[bytes], digest: str) -> None:
        """Makes a spooled file, whose content has this digest, a blob; errors as of `put`."""

    def read(self, digest: str) -> bytes:
        """BlobMissing, BlobDamaged."""

    def content(self, digest: str) -> Iterator[bytes]:
        """Its bytes in pieces, as they are: not compared with the digest, and not removed.  BlobMissing."""

    def open(self, digest: str) -> IO[bytes]:
        """A file at its beginning, once all of it was compared with the digest.  BlobMissing, BlobDamaged."""

    def remove(self, digest: str, keep: Callable[[str], bool]) -> None:
        """Removes a blob that is not to `keep`, where it is there, or has the next but one purge do it."""

    def expect_room(self) -> None:
        """StoreFull or StoreUnusable where nothing could be kept."""

    def lay(self, digest: str, target: Path) -> None:
        """Makes the blob a file, which may share its bytes with it: the file must not be written to.  BlobMissing,
        BlobDamaged, StoreBusy, StoreUnusable, OSError."""

    def __contains__(self, digest: object) -> bool: ...

    def hold(self, db: Transaction, digests: Collection[str]) -> bool:
        """Whether all of them are there."""

    def join(self, db: Transaction, digest: str) -> int:
        """The size of a blob that the transaction is about to name; it is not removed meanwhile.  BlobMissing."""

    def missing(self, digests: Collection[str]) -> list[str]:
        """Those that are not there, of what a child has put; the others stay until a row names them."""

    def digests(self) -> Iterator[str]:
        """All that are kept."""

    def purge(self, keep: Callable[[str], bool], *, young_s: float) -> tuple[int, int]:
        """Removes blobs neither young nor to `keep`; how many, and their bytes."""
