"""Rows of the database as records, and the statements that several parts of the store share."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from planner.api.jobs.blobs import Blob
from planner.api.jobs.database import Row, Transaction
from planner.api.jobs.errors import NotFound
from planner.api.jobs.joined import attempts_of, progress_of
from planner.api.jobs.records import JobRecord, Plan, TaskState

__all__ = [
    "FILE",
    "JOB",
    "PLAN",
    "TASK",
    "WAIT",
    "add_event",
    "current_task",
    "files_of",
    "job_of",
    "job_record",
    "moment_of",
    "plan_of",
    "state_of",
    "ticket",
    "ticket_at",
]

MOMENT = 12  # hexadecimal digits of a ticket that say when it was made
# Statements name their columns, so that a store may have more of them than this program knows: also while it works,
# as PostgreSQL goes on with no prepared statement that would give one more.
TASK = (
    "id, key, current, kind, lane, code, options, status, cancel, token, worker, leased_until, attempts, deaths,"
    " losses, created_at, started_at, finished_at, used_at, progress, summary, error, plan"
)
FILE = "INSERT INTO files (task, way, name, digest, media_type, size) VALUES"
WAIT = "INSERT INTO queue (lane, tenant, task, not_before) VALUES (?, ?, ?, ?)"
JOB = """
SELECT j.id, j.tenant, j.name, j.created_at, j.left_at, j.cut, j.task, j.status,
  t.kind, t.created_at AS begun_at, t.started_at, t.finished_at, t.progress, t.summary, t.error, t.options, t.attempts,
  (SELECT p.id FROM plans p WHERE p.tenant = j.tenant AND p.id = t.plan) AS plan
FROM jobs j JOIN tasks t ON t.id = j.task
"""
PLAN = """
SELECT p.tenant, p.id, p.cursor, p.task, p.name, p.created_at, t.summary, t.options
FROM plans p JOIN tasks t ON t.id = p.task
"""


def ticket(now: float, last: str | None) -> str:
    """A name nobody can guess; later ones sort behind earlier ones, behind `last` also where the clock was set back."""
    if last is not None:
        now = max(now, moment_of(last) + 0.001)
    return ticket_at(now) + os.urandom(10).hex()


def ticket_at(moment: float) -> str:
    """What is between the tickets of before and those of after."""
    return f"{max(0, round(moment * 1000)):0{MOMENT}x}"


def moment_of(ticket: str) -> float:
    """When it was made, by the clock of then."""
    return int(ticket[:MOMENT], 16) / 1000


def add_event(db: Transaction, task: int, kind: str, data: Mapping[str, Any], at: float) -> None:
    """It happened no earlier than the one before, whatever was done to the clock."""
    db.execute(
        "INSERT INTO events (task, seq, type, data, at)"
        " SELECT ?, COALESCE(MAX(seq), 0) + 1, ?, ?, CASE WHEN MAX(at) > ? THEN MAX(at) ELSE ? END"
        " FROM events WHERE task = ?",
        (task, kind, json.dumps(dict(data)), at, at, task),
    )


def files_of(db: Transaction, task: int, way: str) -> dict[str, Blob]:
    """The blobs that go `in` or come `out`, by name."""
    found = db.execute(
        "SELECT name, digest, media_type, size FROM files WHERE task = ? AND way = ? ORDER BY name", (task, way)
    )
    return {r["name"]: Blob(r["digest"], r["media_type"], r["size"]) for r in found}


def state_of(db: Transaction, row: Row) -> TaskState:
    return TaskState(
        id=row["id"],
        kind=row["kind"],
        status=row["status"],
        progress=json.loads(row["progress"]),
        result=files_of(db, row["id"], "out"),
        summary=json.loads(row["summary"]),
        error=_json(row["error"]),
        attempts=row["attempts"],
    )


def job_of(row: Row) -> JobRecord:
    left, created = row["left_at"], row["created_at"]
    apart = left is not None  # it shows what it had when it left
    started, finished = row["started_at"], left if apart else row["finished_at"]
    began = None if started is None or (apart and started > left) else max(started, created)
    return JobRecord(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        kind=row["kind"],
        status=row["status"],
        created_at=created,
        # Of a task that was there before the job: the job began when it came.
        started_at=began,
        finished_at=None if finished is None else max(finished, began or created),
        progress={} if apart else progress_of(row),
        plan=None if apart else row["plan"],
        error=None if apart else _json(row["error"]),
        summary={} if apart else json.loads(row["summary"]),
        options=json.loads(row["options"]),
        attempts=attempts_of(row),
        task=row["task"],
    )


def current_task(db: Transaction, key: str, locked: str = "") -> Row | None:
    row: Row | None = db.execute(f"SELECT {TASK} FROM tasks WHERE key = ? AND current = 1{locked}", (key,)).fetchone()
    return row


def job_record(db: Transaction, tenant: str, job: str) -> JobRecord:
    row = db.execute(f"{JOB} WHERE j.tenant = ? AND j.id = ?", (tenant, job)).fetchone()
    if row is None:
        raise NotFound(f"job {job}: there is none")
    return job_of(row)


def plan_of(db: Transaction, row: Row) -> Plan:
    return Plan(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        created_at=row["created_at"],
        files=files_of(db, row["task"], "out"),
        summary=json.loads(row["summary"]),
        options=json.loads(row["options"]),
        cursor=row["cursor"],
    )


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
