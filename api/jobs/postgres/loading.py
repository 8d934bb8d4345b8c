"""Takes the rows of another store in, whole or not at all.

Triggers are off meanwhile: what they would write comes along or is computed at the end, and no notes are sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg
from psycopg import Connection, sql

from planner.api.jobs.errors import StoreDamaged, StoreUnusable
from planner.api.jobs.postgres.faults import store_error

__all__ = ["TABLES", "Fingerprint", "load"]

# In an order in which rows name those of before.  Workers, their codes, rates and traces are of the moment, counts
# and who waits follow, blobs and the secret come by themselves.
TABLES: Final = (
    *("tasks", "files", "queue", "turns", "jobs", "plans", "events", "keys"),
    *("ended_sessions", "webhooks"),
)
_FETCHED: Final = 1000


class Fingerprint:
    """Number and digest of rows, in whatever order they come."""

    def __init__(self) -> None:
        self.rows = self._sum = 0

    def add(self, row: Sequence[Any]) -> None:
        self.rows += 1
        digest = hashlib.blake2b(repr(tuple(row)).encode("utf-8", "surrogatepass"), digest_size=16)
        self._sum = (self._sum + int.from_bytes(digest.digest())) % 2**128

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and (self.rows, self._sum) == (other.rows, other._sum)

    __hash__ = None  # type: ignore[assignment]


def load(
    address: str, where: str, columns: Callable[[str], Sequence[str]], rows: Callable[[str], Iterator[Sequence[Any]]]
) -> dict[str, int]:
    """`columns` and `rows` of a table of the other store; the number of rows that came, by table.

    StoreUnusable where there are rows already, StoreDamaged where what is read back is not what was written.
    """
    try:
        with psycopg.connect(address) as db:
            db.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
            for table in TABLES:
                db.execute(sql.SQL("LOCK TABLE {} IN EXCLUSIVE MODE").format(sql.Identifier(table)))
                _refuse_rows(db, table, where)
            loaded = {table: _load_table(db, table, columns(table), rows(table), where) for table in TABLES}
            _follow(db)
            _go_on_counting(db, columns("counts"), rows("counts"))
        return loaded
    except psycopg.Error as e:
        raise store_error(where, e) from e


def _refuse_rows(db: Connection[Any], table: str, where: str) -> None:
    found = db.execute(sql.SQL("SELECT EXISTS (SELECT 1 FROM {})").format(sql.Identifier(table))).fetchone()
    if found is not None and found[0]:
        raise StoreUnusable(f"{where}: there are {table} in it already; name an empty database")


def _load_table(
    db: Connection[Any], table: str, columns: Sequence[str], rows: Iterator[Sequence[Any]], where: str
) -> int:
    name, names = sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    db.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(name))
    given, found = Fingerprint(), Fingerprint()
    with db.cursor() as cursor, cursor.copy(sql.SQL("COPY {} ({}) FROM STDIN").format(name, names)) as copy:
        for row in rows:
            given.add(row)
            copy.write_row(row)
    with db.cursor(f"reading_{table}") as cursor:
        cursor.itersize = _FETCHED
        for row in cursor.execute(sql.SQL("SELECT {} FROM {}").format(names, name)):
            found.add(row)
    if given != found:
        raise StoreDamaged(f"{where}: {found.rows} {table} read back are not the {given.rows} that were written")
    db.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(name))
    return given.rows


def _follow(db: Connection[Any]) -> None:
    """What follows from rows: counts, who waits, and the number of the next task."""
    db.execute("DELETE FROM counts")
    count = "INSERT INTO counts (what, status, shard, n) SELECT {}, status, 0, COUNT(*) FROM {} GROUP BY status"
    for table in ("tasks", "jobs"):
        db.execute(sql.SQL(count).format(sql.Literal(table), sql.Identifier(table)))
    db.execute("DELETE FROM waiting")
    db.execute(
        "INSERT INTO waiting (lane, tenant, tasks, first)"
        " SELECT lane, tenant, COUNT(*), MIN(task) FROM queue GROUP BY lane, tenant"
    )
    last = "COALESCE((SELECT MAX(id) FROM tasks), 0)"
    db.execute(f"SELECT setval(pg_get_serial_sequence('tasks', 'id'), {last} + 1, false)")


def _go_on_counting(db: Connection[Any], columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> None:
    """What was counted as it happened follows from no row that is left."""
    add = sql.SQL("INSERT INTO counts ({}) VALUES ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.SQL(", ").join(sql.Placeholder() * len(columns))
    )
    what = columns.index("what")
    for row in rows:
        if row[what] not in ("tasks", "jobs"):
            db.execute(add, row)
