"""A PostgreSQL database that processes of several hosts share.

Transactions that write lock the rows that they decide by (`db.locked`), in READ COMMITTED: every statement then sees
what was written before it got its lock.  Where two of them meet all the same, the one that the server ends is begun
again (`repeated`).  Time is that of the server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import Connection, Cursor, conninfo
from psycopg_pool import ConnectionPool

from planner.api.jobs.database import Result, Transaction
from planner.api.jobs.errors import StoreUnusable
from planner.api.jobs.postgres.faults import store_error
from planner.api.jobs.postgres.listening import Listener
from planner.api.jobs.postgres.loading import TABLES, load
from planner.api.jobs.postgres.schema import CHANNEL, make_or_check, migrate
from planner.api.jobs.postgres.statements import Named, named_rows, translated

__all__ = ["PostgresDatabase"]

CONNECTIONS: Final = 10  # of one process, beside the one that listens
WAIT_S: Final = 10.0  # for a connection, a lock, or the server
NOW: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_DEFAULTS: Final = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "application_name": "planner",
}
_OPTIONS: Final = "-c lock_timeout=10s -c statement_timeout=30s -c idle_in_transaction_session_timeout=60s"
_PATIENT: Final = "SET LOCAL statement_timeout = 0"  # all rows may take longer than what a request waits for


class _Transaction:
    """A connection inside a transaction."""

    def __init__(self, db: Connection[Named], now: float | None, locked: str, again: str) -> None:
        self._db, self._now, self._again = db, now, again
        self.locked = locked

    @property
    def now(self) -> float:
        if self._now is None:
            self._now = _moment(self._db.execute(self._again))
        return self._now

    def execute(self, statement: str, values: Any = None, /) -> Result:
        return self._db.execute(translated(statement), values)

    def executemany(self, statement: str, values: Sequence[Any], /) -> None:
        self._db.cursor().executemany(translated(statement), values)

    def take_turns(self, what: str, /) -> None:
        self._db.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (what,))


class PostgresDatabase:
    """Makes the tables in a database that has none.  StoreUnusable where it cannot be reached or is of a version that
    this program does not work on."""

    remote = True

    def __init__(self, url: str, *, connections: int = CONNECTIONS, now: str = NOW) -> None:
        self.where, self._address = _address(url)
        self.now = now  # the statement that asks for the moment
        self._listener = Listener(self._address, CHANNEL)
        with _opened(self._address, self.where) as db:
            make_or_check(db)
        self._pool: ConnectionPool[Connection[Named]] = ConnectionPool(
            self._address,
            kwargs={"autocommit": True, "row_factory": named_rows},
            min_size=1,
            max_size=connections,
            timeout=WAIT_S,
            open=True,
        )

    @staticmethod
    def migrate(url: str) -> tuple[int, int]:
        """Changes the tables to those of this program; their versions before and after.  StoreUnusable."""
        where, address = _address(url)
        with _opened(address, where) as db:
            db.execute(_PATIENT)
            return migrate(db)

    def load(
        self, columns: Callable[[str], Sequence[str]], rows: Callable[[str], Iterator[Sequence[Any]]]
    ) -> dict[str, int]:
        """The rows of another store; as `loading.load`."""
        return load(self._address, self.where, columns, rows)

    @contextlib.contextmanager
    def read(self, *, patient: bool = False) -> Iterator[Transaction]:
        with self._begun("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as (db, _):
            if patient:
                db.execute(_PATIENT)
            yield _Transaction(db, None, "", self.now)
            db.execute("COMMIT")

    @contextlib.contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Transaction]:
        commit = "" if durable else "SET LOCAL synchronous_commit = off; "
        with self._begun(f"BEGIN; {commit}{self.now}") as (db, cursor):
            while cursor.nextset():
                pass
            yield _Transaction(db, _moment(cursor), " FOR UPDATE", self.now)
            db.execute("COMMIT")

    def version(self) -> int:
        return self._listener.version()

    def changes(self, since: int) -> frozenset[int] | None:
        return self._listener.changes(since)

    def checkpoint(self) -> None:
        pass  # the server sees to it

    def check(self) -> None:
        with self.read(patient=True) as db:
            for table in TABLES:
                db.execute(f"SELECT COUNT(t.*) FROM {table} t").fetchone()

    def close(self) -> None:
        self._listener.close()
        self._pool.close()

    @contextlib.contextmanager
    def _begun(self, begin: str) -> Iterator[tuple[Connection[Named], Cursor[Named]]]:
        """A connection, after this statement.  What is open when the block is left by an error is undone."""
        try:
            db, cursor = self._connection(begin)
            try:
                yield db, cursor
            except BaseException:
                with contextlib.suppress(psycopg.Error):
                    db.execute("ROLLBACK")
                raise
            finally:
                self._pool.putconn(db)
        except psycopg.Error as e:
            raise store_error(self.where, e) from e

    def _connection(self, begin: str) -> tuple[Connection[Named], Cursor[Named]]:
        """One that works: those that the server has closed since they were last used are left behind."""
        for more in reversed(range(CONNECTIONS + 1)):
            db = self._pool.getconn()
            try:
                return db, db.execute(begin)
            except BaseException as e:
                self._pool.putconn(db)
                if not (more and isinstance(e, psycopg.OperationalError)):
                    raise
        raise AssertionError


def _address(url: str) -> tuple[str, str]:
    """What may be said of it, and how to connect."""
    try:
        given = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        # What the library says repeats the address, and with it the password.
        raise StoreUnusable("the address of the store is none of PostgreSQL: expected postgresql://…") from None
    where = " ".join(f"{k}={given[k]}" for k in ("host", "port", "dbname") if given.get(k)) or "PostgreSQL"
    options = f"{_OPTIONS} {given.get('options', '')}".strip()
    if "password" not in given and "PGPASSWORD" in os.environ:
        given["password"] = os.environ["PGPASSWORD"]  # which a worker hides from what it starts
    return where, conninfo.make_conninfo("", **{**_DEFAULTS, **given, "options": options})


@contextlib.contextmanager
def _opened(address: str, where: str) -> Iterator[Connection[Any]]:
    """One connection, in a transaction.  StoreUnusable."""
    try:
        with psycopg.connect(address) as db:
            yield db
    except psycopg.Error as e:
        raise StoreUnusable(str(store_error(where, e)).replace("; try again", "")) from e
    except StoreUnusable as e:
        raise StoreUnusable(f"{where}: {e}") from e


def _moment(cursor: Cursor[Named]) -> float:
    row = cursor.fetchone()
    assert row is not None
    return float(row[0])
