"""Rows of the database as records, and the statements that several parts of the store share."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from planner.api.jobs.blobs import Blob
from planner.api.jobs.joined import attempts_of, progress_of
from planner.api.jobs.records import JobRecord, Plan, TaskState

__all__ = ["JOB", "add_event", "files_of", "job_of", "plan_of", "state_of", "ticket"]

STATUS = "CASE WHEN j.left_at IS NOT NULL THEN 'cancelled' ELSE t.status END"
JOB = f"""
SELECT j.id, j.tenant, j.name, j.created_at, j.left_at, j.cut, j.task, {STATUS} AS status,
  t.kind, t.created_at AS begun_at, t.started_at, t.finished_at, t.progress, t.summary, t.error, t.options, t.attempts,
  (SELECT p.id FROM plans p WHERE p.tenant = j.tenant AND p.id = t.plan) AS plan
FROM jobs j JOIN tasks t ON t.id = j.task
"""


def ticket() -> str:
    """A name nobody can guess; later ones sort behind earlier ones."""
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}"


def add_event(db: sqlite3.Connection, task: int, kind: str, data: Mapping[str, Any], at: float) -> None:
    last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM events WHERE task = ?", (task,)).fetchone()[0]
    db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (task, last + 1, kind, json.dumps(dict(data)), at))


def files_of(db: sqlite3.Connection, task: int, way: str) -> dict[str, Blob]:
    """The blobs that go `in` or come `out`, by name."""
    found = db.execute(
        "SELECT name, digest, media_type, size FROM files WHERE task = ? AND way = ? ORDER BY name", (task, way)
    )
    return {r["name"]: Blob(r["digest"], r["media_type"], r["size"]) for r in found}


def state_of(db: sqlite3.Connection, row: sqlite3.Row) -> TaskState:
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


def job_of(row: sqlite3.Row) -> JobRecord:
    left, created = row["left_at"], row["created_at"]
    apart = left is not None  # it shows what it had when it left
    started, finished = row["started_at"], left if apart else row["finished_at"]
    return JobRecord(
        id=row["id"],
        tenant=row["tenant"],
        name=row["name"],
        kind=row["kind"],
        status=row["status"],
        created_at=created,
        # Of a task that was there before the job: the job began when it came.
        started_at=None if started is None or (apart and started > left) else max(started, created),
        finished_at=None if finished is None else max(finished, created),
        progress={} if apart else progress_of(row),
        plan=None if apart else row["plan"],
        error=None if apart else _json(row["error"]),
        summary={} if apart else json.loads(row["summary"]),
        options=json.loads(row["options"]),
        attempts=attempts_of(row),
        task=row["task"],
    )


def plan_of(db: sqlite3.Connection, row: sqlite3.Row) -> Plan:
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
