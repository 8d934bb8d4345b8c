"""Blobs in a bucket, with a row of the database for each.

The row says when the blob was last put or joined.  Purging has two phases: what nobody names and nobody has used for an
hour is doomed, and what is still doomed an hour later is removed, in a transaction that holds its row.  Whoever puts or
joins a blob writes to the row first, which ends its doom, or waits until it is gone and puts it anew.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Final

from planner.api.jobs.blobs import YOUNG, digest_bytes, is_digest
from planner.api.jobs.database import Database, Transaction, repeated
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreFull
from planner.api.jobs.s3.bucket import Bucket

__all__ = ["S3Blobs"]

BATCH: Final = 200  # rows looked at together

_TOUCH = """
INSERT INTO blobs (digest, size, touched_at) VALUES (?, ?, ?)
ON CONFLICT (digest) DO UPDATE SET touched_at = excluded.touched_at, doomed_at = NULL RETURNING stored_at
"""
_STORED = """
INSERT INTO blobs (digest, size, touched_at, stored_at) VALUES (?, ?, ?, ?)
ON CONFLICT (digest) DO UPDATE SET size = excluded.size, stored_at = excluded.stored_at
"""


@dataclass(frozen=True, slots=True)
class S3Blobs:
    database: Database
    bucket: Bucket

    @property
    def remote(self) -> bool:
        return True

    def put(self, content: bytes) -> str:
        digest = digest_bytes(content)
        if not self._touch(digest, len(content)):
            self.bucket.put(content)
            self._stored(digest, len(content))
        return digest

    def spool(self) -> IO[bytes]:
        """It has lost its name already, so that nothing is left of it whoever is killed."""
        try:
            file = tempfile.NamedTemporaryFile(prefix="planner-blob-", delete=False)  # noqa: SIM115  (who asks closes it)
            os.unlink(file.name)
            return file
        except OSError as e:
            raise StoreFull(f"{tempfile.gettempdir()}: cannot be written to ({e.strerror})") from e

    def adopt(self, file: IO[bytes], digest: str) -> None:
        try:
            file.flush()
            size = file.tell()
            if not self._touch(digest, size):
                with os.fdopen(os.dup(file.fileno()), "rb") as content:
                    self.bucket.put_file(content, size, digest)
                self._stored(digest, size)
            file.close()
        except OSError as e:
            raise StoreFull(f"{tempfile.gettempdir()}: cannot be written to ({e.strerror}); nothing was kept") from e

    def read(self, digest: str) -> bytes:
        try:
            return self.bucket.read(digest)
        except (BlobDamaged, BlobMissing):
            self._forget(digest)  # so that the same content can be kept again
            raise

    def content(self, digest: str) -> Iterator[bytes]:
        return self.bucket.content(digest)

    def open(self, digest: str) -> IO[bytes]:
        """A copy on this host, without a name."""
        try:
            with contextlib.ExitStack() as stack:
                file = stack.enter_context(tempfile.TemporaryFile(prefix="planner-blob-"))
                self.bucket.copy(digest, file)
                file.seek(0)
                stack.pop_all()  # who asks closes it
        except (BlobDamaged, BlobMissing):
            self._forget(digest)
            raise
        except OSError as e:
            raise StoreFull(f"{tempfile.gettempdir()}: cannot be written to ({e.strerror})") from e
        return file

    def remove(self, digest: str, keep: Callable[[str], bool]) -> None:
        """Dooms it, whenever it was used: another host may have put it, too, and be about to name it."""
        if not keep(digest):
            self._doom(digest, -YOUNG)

    def expect_room(self) -> None:
        """What a bucket has room for is known by writing alone."""

    def lay(self, digest: str, target: Path) -> None:
        target.write_bytes(self.read(digest))

    def __contains__(self, digest: object) -> bool:
        if not isinstance(digest, str) or not is_digest(digest):
            return False
        with self.database.read() as db:
            return self.hold(db, [digest])

    def hold(self, db: Transaction, digests: Collection[str]) -> bool:
        stored = "SELECT 1 FROM blobs WHERE digest = ? AND stored_at IS NOT NULL"
        return all(db.execute(stored, (digest,)).fetchone() is not None for digest in digests)

    def join(self, db: Transaction, digest: str) -> int:
        row = db.execute(
            "UPDATE blobs SET touched_at = ?, doomed_at = NULL WHERE digest = ? AND stored_at IS NOT NULL"
            " RETURNING size",
            (db.now, digest),
        ).fetchone()
        if row is None:
            raise BlobMissing(f"blob {digest}: there is none; it was removed, or never kept")
        return int(row["size"])

    def missing(self, digests: Collection[str]) -> list[str]:
        absent = []
        for digest in digests:
            self._touch(digest, 0)  # first, so that purging leaves it
            size = self.bucket.size(digest)
            if size is None:
                self._forget(digest)
                absent.append(digest)
            else:
                self._stored(digest, size)
        return absent

    def digests(self) -> Iterator[str]:
        for digest, _, _ in self.bucket.objects():
            yield digest

    def purge(self, keep: Callable[[str], bool], *, young_s: float = YOUNG) -> tuple[int, int]:
        """One that is doomed now is removed by a purge that comes `young_s` later."""
        self._find_strays(young_s)
        removed = freed = 0
        for digest in list(self._rows("doomed_at < ?", young_s)):
            size = self._remove(digest)
            removed += size is not None
            freed += size or 0
        for digest in self._rows("touched_at < ? AND doomed_at IS NULL", young_s):
            if not keep(digest):
                self._doom(digest, young_s)
        return removed, freed

    @repeated
    def _touch(self, digest: str, size: int) -> bool:
        """Whether it is stored already; it is not removed from now on."""
        with self.database.write() as db:
            row = db.execute(_TOUCH, (digest, size, db.now)).fetchone()
        return row["stored_at"] is not None

    @repeated
    def _stored(self, digest: str, size: int) -> None:
        with self.database.write() as db:
            now = db.now
            db.execute(_STORED, (digest, size, now, now))

    @repeated
    def _forget(self, digest: str) -> None:
        with self.database.write() as db:
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    @repeated
    def _doom(self, digest: str, young_s: float) -> None:
        with self.database.write() as db:
            db.execute(
                "UPDATE blobs SET doomed_at = ? WHERE digest = ? AND touched_at < ?", (db.now, digest, db.now - young_s)
            )

    @repeated
    def _remove(self, digest: str) -> int | None:
        """Its bytes; None where it is wanted again.  The row is held meanwhile: who puts the blob waits here."""
        with self.database.write() as db:
            doomed = f"SELECT size FROM blobs WHERE digest = ? AND doomed_at IS NOT NULL{db.locked}"
            row = db.execute(doomed, (digest,)).fetchone()
            if row is None:
                return None
            if db.execute("SELECT 1 FROM files WHERE digest = ? LIMIT 1", (digest,)).fetchone() is not None:
                db.execute("UPDATE blobs SET doomed_at = NULL WHERE digest = ?", (digest,))
                return None
            self.bucket.remove(digest)
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
        return int(row["size"])

    def _rows(self, condition: str, young_s: float) -> Iterator[str]:
        """Digests of rows for which something held more than `young_s` ago."""
        last = ""
        while True:
            with self.database.read() as db:
                rows = db.execute(
                    f"SELECT digest FROM blobs WHERE {condition} AND digest > ? ORDER BY digest LIMIT ?",
                    (db.now - young_s, last, BATCH),
                ).fetchall()
            for row in rows:
                last = row["digest"]
                yield last
            if len(rows) < BATCH:
                return

    def _find_strays(self, young_s: float) -> None:
        """Gives objects without a row one: children put them whose worker was lost before it knew of them."""
        with self.database.read() as db:
            before = db.now - young_s
        old = (found for found in self.bucket.objects() if found[2] < before)
        while batch := list(islice(old, BATCH)):
            self._give_rows(batch)

    @repeated
    def _give_rows(self, objects: Sequence[tuple[str, int, float]]) -> None:
        """`objects`: digest, size, and when it was written; those that have a row already are left alone."""
        places = ", ".join("?" * len(objects))
        with self.database.read() as db:
            rows = db.execute(f"SELECT digest FROM blobs WHERE digest IN ({places})", [d for d, _, _ in objects])
            known = {row["digest"] for row in rows.fetchall()}
        strays = sorted(o for o in objects if o[0] not in known)  # in one order, so that nobody waits in a circle
        if strays:
            with self.database.write() as db:
                db.executemany(
                    "INSERT INTO blobs (digest, size, touched_at, stored_at) VALUES (?, ?, ?, ?)"
                    " ON CONFLICT DO NOTHING",
                    [(digest, size, written, written) for digest, size, written in strays],
                )
