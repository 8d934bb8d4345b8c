"""The folder of an embedded store, looked at without opening the store: looking makes, changes and removes nothing."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner.api.jobs.blobs import Blobs
from planner.errors import UsageError

__all__ = ["DATABASE", "Findings", "digest_of_file", "examine", "named_blobs", "reading", "refuse_no_store"]

DATABASE = "store.sqlite"
_PIECE = 1 << 20
_SHOWN = 100  # findings of one kind that are listed


@dataclass(slots=True)
class Findings:
    """`database`: what SQLite says is wrong; `damaged`: blobs with other content than their name says; `missing`: blobs
    that a row names and that are gone."""

    database: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    jobs: int = 0
    blobs: int = 0
    bytes: int = 0

    @property
    def sound(self) -> bool:
        return not (self.database or self.damaged or self.missing)

    def document(self) -> dict[str, Any]:
        return {
            "sound": self.sound,
            "jobs": self.jobs,
            "blobs": self.blobs,
            "bytes": self.bytes,
            "database": self.database,
            "damaged": self.damaged[:_SHOWN],
            "missing": self.missing[:_SHOWN],
        }


def refuse_no_store(folder: Path) -> None:
    """UsageError where the folder holds no store."""
    if not (folder / DATABASE).is_file():
        raise UsageError(f"--data {folder}: expected the folder of a service, found no {DATABASE} in it")


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """The database, for reading alone; sqlite3.Error."""
    path = (folder / DATABASE).resolve()
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        yield db
    finally:
        db.close()


def named_blobs(db: sqlite3.Connection) -> set[str]:
    """Digests that rows name."""
    return {str(row[0]) for row in db.execute("SELECT DISTINCT digest FROM files")}


def examine(folder: Path) -> Findings:
    """Reads all of the database and every blob; a service may be at work meanwhile."""
    found = Findings()
    blobs = Blobs(folder / "blobs")
    present: set[str] = set()
    for digest in blobs.digests():
        with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
            size, content = digest_of_file(blobs.path(digest))
            present.add(digest)
            found.blobs += 1
            found.bytes += size
            if content != digest:
                found.damaged.append(digest)
    try:
        with reading(folder) as db:
            checked = [str(row[0]) for row in db.execute("PRAGMA integrity_check(100)")]
            found.database = [line for line in checked if line != "ok"]
            if not found.database:
                lost = db.execute("PRAGMA foreign_key_check").fetchall()
                found.database = [f"table {row[0]}: a row refers to none of {row[2]}" for row in lost[:_SHOWN]]
                found.jobs = db.execute("SELECT COUNT(*) FROM jobs").fetchone()[0]
                # Rows are read last: a blob is there before a row names it.
                found.missing = sorted(d for d in named_blobs(db) - present if d not in blobs)
    except sqlite3.Error as e:
        found.database.append(str(e))
    return found


def digest_of_file(path: Path) -> tuple[int, str]:
    """Size and SHA-256, read in pieces.  FileNotFoundError; a file that cannot be read has no digest."""
    content, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(_PIECE):
                content.update(piece)
                size += len(piece)
    except FileNotFoundError:
        raise
    except OSError:
        return size, ""
    return size, content.hexdigest()
