"""Removes what is kept no longer: never what is wanted, being computed, or being written."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.blobs import YOUNG
from planner.api.jobs.database import Database, repeated
from planner.api.jobs.rows import ticket_at
from planner.api.jobs.totals import PURGED, add

__all__ = ["Purged", "purge"]

BATCH = 200  # rows to a transaction, so that nobody waits long
FULL_S = 3600.0  # after which a bucket is full, whoever's it is: its row says nothing any more


@dataclass(frozen=True, slots=True)
class Purged:
    """How many were removed; `bytes` of blobs."""

    jobs: int
    plans: int
    tasks: int
    blobs: int
    bytes: int


def purge(
    database: Database,
    blobs: BlobStore,
    retention_s: float,
    failed_s: float | None = None,
    *,
    young_s: float = YOUNG,
) -> Purged:
    """`retention_s`: seconds since a job ended, a plan was made (while a job has it, it stays), or a
    result was last asked for.  `failed_s`: as of `Store.purge`."""
    with database.read() as db:
        now = db.now
        before = now - retention_s
    jobs = _rows(
        database,
        "DELETE FROM jobs WHERE id IN (SELECT j.id FROM jobs j JOIN tasks t ON t.id = j.task"
        " WHERE j.id < :ticket AND COALESCE(j.left_at, t.finished_at) < :before LIMIT :batch)",
        before,
    )
    plans = _rows(
        database,
        "DELETE FROM plans WHERE (tenant, id) IN"
        " (SELECT p.tenant, p.id FROM plans p WHERE p.created_at < :before AND NOT EXISTS"
        " (SELECT 1 FROM jobs j WHERE j.task = p.task AND j.tenant = p.tenant AND j.left_at IS NULL) LIMIT :batch)",
        before,
    )
    tasks = _rows(
        database,
        "DELETE FROM tasks WHERE id IN (SELECT t.id FROM tasks t WHERE t.finished_at < :before AND t.used_at < :before"
        " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.task = t.id)"
        " AND NOT EXISTS (SELECT 1 FROM plans p WHERE p.task = t.id) LIMIT :batch)"
        " AND used_at < :before",  # not one that is asked for at this moment
        before,
    )
    if failed_s is not None:
        _rows(
            database,
            "DELETE FROM files WHERE task IN (SELECT t.id FROM tasks t WHERE t.status IN ('failed', 'cancelled')"
            " AND t.finished_at < :before AND t.plan IS NULL"
            " AND EXISTS (SELECT 1 FROM files f WHERE f.task = t.id) LIMIT :batch)",
            now - failed_s,
        )
    with database.write(durable=False) as db:
        db.execute("DELETE FROM codes WHERE worker IN (SELECT name FROM workers WHERE seen_at < ?)", (before,))
        db.execute("DELETE FROM workers WHERE seen_at < ?", (before,))
        db.execute("DELETE FROM rates WHERE at < ?", (now - FULL_S,))

    def named(digest: str) -> bool:
        with database.read() as db:
            return db.execute("SELECT 1 FROM files WHERE digest = ?", (digest,)).fetchone() is not None

    removed, freed = blobs.purge(named, young_s=young_s)
    out = Purged(jobs, plans, tasks, removed, freed)
    _note(database, out)
    return out


@repeated
def _note(database: Database, purged: Purged) -> None:
    with database.write(durable=False) as db:
        add(db, PURGED, "runs")
        for what, n in asdict(purged).items():
            add(db, PURGED, what, n)


def _rows(database: Database, statement: str, before: float) -> int:
    """Repeats a deletion until it finds nothing."""
    total = 0
    while True:
        done = _batch(database, statement, before)
        total += done
        if done < BATCH:
            return total


@repeated
def _batch(database: Database, statement: str, before: float) -> int:
    with database.write() as db:
        return db.execute(statement, {"before": before, "ticket": ticket_at(before), "batch": BATCH}).rowcount
