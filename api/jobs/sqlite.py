"""One SQLite file that several processes and threads share.

WAL with synchronous=FULL: a write that returned survives a power failure.  Every thread has a connection of its own;
writers of one process take turns by a lock, which is fairer than the database's own polling.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from planner.api.jobs.database import Transaction
from planner.api.jobs.errors import StoreBusy, StoreDamaged, StoreError, StoreFull, StoreUnusable
from planner.api.jobs.schema import migrate

__all__ = ["SqliteDatabase"]

BUSY_S = 10.0  # how long a writer waits for those of other processes
LOG_PAGES = 10_000  # of the write-ahead log, at which whoever writes moves it into the database, if no worker has


class _Connection(sqlite3.Connection):
    """A transaction by itself."""

    locked = ""  # one transaction writes at a time

    @property
    def now(self) -> float:
        return time.time()

    def take_turns(self, what: str, /) -> None:
        pass


class SqliteDatabase:
    """Makes the file and its tables where there are none.  StoreUnusable, StoreDamaged."""

    remote = False

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._writing = threading.Lock()
        self._watching = threading.Lock()
        self._watcher: _Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as e:
            raise StoreUnusable(f"{path.parent}: cannot be made ({e.strerror}); give another folder") from e
        with self.write():
            migrate(self._connection())

    @staticmethod
    def version_of(path: Path) -> int:
        """Of the tables in the file, which are left as they are.  StoreDamaged, StoreUnusable."""
        with _typed(path), contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    @contextlib.contextmanager
    def read(self, *, patient: bool = False) -> Iterator[Transaction]:
        with _typed(self.path):
            db = self._connection()
            db.execute("BEGIN")
            try:
                yield db
            finally:
                db.rollback()

    @contextlib.contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Transaction]:
        with self._writing, _typed(self.path):
            db = self._connection()
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.commit()
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    db.rollback()
                raise

    def version(self) -> int:
        with self._watching, _typed(self.path):
            if self._watcher is None:  # a connection does not see its own writes here, so this one never writes
                self._watcher = self._connect()
            return int(self._watcher.execute("PRAGMA data_version").fetchone()[0])

    def changes(self, since: int) -> frozenset[int] | None:
        return None

    def checkpoint(self) -> None:
        """Moves what it can from the write-ahead log into the database, so that no request has to; waits for nobody."""
        with self._writing, _typed(self.path):
            self._connection().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def check(self) -> None:
        with self.read() as db:
            found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise StoreDamaged(f"{self.path}: {found}; restore it, or move it away to begin anew")

    def close(self) -> None:
        pass  # connections end with their threads

    def _connection(self) -> _Connection:
        db: _Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = self._local.db = self._connect()
        return db

    def _connect(self) -> _Connection:
        db = sqlite3.connect(
            self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False, factory=_Connection
        )
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        return db


@contextlib.contextmanager
def _typed(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as e:
        raise _error(path, e) from e


def _error(path: Path, e: sqlite3.Error) -> StoreError:
    code = (getattr(e, "sqlite_errorcode", None) or 0) & 0xFF  # extended codes carry the plain one in their last byte
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreBusy(f"{path}: held by another process for more than {BUSY_S:g} s; try again")
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path}: no space is left ({e}); nothing of the call was kept")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(f"{path}: {e}; restore it, or move it away to begin anew")
    return StoreUnusable(f"{path}: {e}")
