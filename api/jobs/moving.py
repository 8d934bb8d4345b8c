"""Moves the store of a folder into a database and a bucket that several hosts share.

Blobs go first, those that are there already stay, so that a move that broke off goes on where it was.  Rows come in one
transaction.  The folder is left as it is, and nobody writes to it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planner.api.jobs.database import Transaction
from planner.api.jobs.errors import BlobDamaged, BlobMissing, StoreUnusable
from planner.api.jobs.shared import set_shared_secret
from planner.api.jobs.store import Store

if TYPE_CHECKING:
    from planner.api.jobs.blob_store import BlobStore
    from planner.api.jobs.postgres.database import PostgresDatabase

__all__ = ["Moved", "move"]

SECRET_FILE: Final = "secret"


@dataclass(slots=True)
class Moved:
    """Rows by table; blobs that went, that were there already, and that the folder had lost."""

    rows: dict[str, int] = field(default_factory=dict)
    blobs: int = 0
    there: int = 0
    bytes: int = 0
    lost: list[str] = field(default_factory=list)


def move(folder: Path, database: PostgresDatabase, blobs: BlobStore, say: Callable[[str], None]) -> Moved:
    """`say`: hears how far it is.  StoreUnusable where a worker still has the folder, or the database has rows."""
    source = Store(folder)
    if working := source.leases.workers():
        names = ", ".join(sorted(working))
        raise StoreUnusable(f"{folder}: {names} works there; stop the service and its workers first")
    moved = Moved()
    with source.database.write() as db:  # nobody else writes until all is over
        _move_blobs(db, source, blobs, moved, say)
        moved.rows = database.load(lambda table: _columns(db, table), lambda table: _rows(db, table))
    secret = folder / SECRET_FILE
    if secret.is_file():
        set_shared_secret(database, secret.read_bytes())  # so that sessions and cursors stay good
    return moved


def _move_blobs(db: Transaction, source: Store, blobs: BlobStore, moved: Moved, say: Callable[[str], None]) -> None:
    named = [row["digest"] for row in db.execute("SELECT DISTINCT digest FROM files ORDER BY digest").fetchall()]
    for k, digest in enumerate(named, 1):
        if digest in blobs and not blobs.missing([digest]):
            moved.there += 1
        else:
            try:
                content = source.blobs.read(digest)
            except (BlobMissing, BlobDamaged):
                moved.lost.append(digest)  # a result is computed again when it is asked for
                continue
            blobs.put(content)
            moved.blobs += 1
            moved.bytes += len(content)
        if k % 100 == 0 or k == len(named):
            say(f"{k:,} of {len(named):,} blobs")


def _columns(db: Transaction, table: str) -> list[str]:
    return [str(row["name"]) for row in db.execute(f"PRAGMA table_info({table})").fetchall()]


def _rows(db: Transaction, table: str) -> Iterator[Sequence[Any]]:
    names = ", ".join(_columns(db, table))
    return (tuple(row) for row in db.execute(f"SELECT {names} FROM {table}"))
