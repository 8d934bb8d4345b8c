"""Stores as earlier versions of the program made them, and as those go on writing to them."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from planner.api.jobs import schema

__all__ = ["STATES", "made_by_version", "write_as_version_2"]

STATES = ("queued", "running", "succeeded", "failed", "cancelled")

_VERSION_2 = """
CREATE TABLE tasks (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL, current INTEGER NOT NULL, kind TEXT NOT NULL, lane INTEGER NOT NULL, code TEXT NOT NULL,
  options TEXT NOT NULL,
  status TEXT NOT NULL, cancel INTEGER NOT NULL DEFAULT 0,
  token INTEGER NOT NULL DEFAULT 0, worker TEXT, leased_until REAL,
  attempts INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, started_at REAL, finished_at REAL, used_at REAL NOT NULL,
  progress TEXT NOT NULL DEFAULT '{}', summary TEXT NOT NULL DEFAULT '{}', error TEXT, plan TEXT
);
CREATE UNIQUE INDEX tasks_current ON tasks (key) WHERE current;
CREATE INDEX tasks_running ON tasks (leased_until) WHERE status = 'running';
CREATE INDEX tasks_status ON tasks (status, created_at);
CREATE TABLE files (
  task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE, way TEXT NOT NULL, name TEXT NOT NULL,
  digest TEXT NOT NULL, media_type TEXT NOT NULL, size INTEGER NOT NULL,
  PRIMARY KEY (task, way, name)
) WITHOUT ROWID;
CREATE INDEX files_digest ON files (digest);
CREATE TABLE queue (
  lane INTEGER NOT NULL, tenant TEXT NOT NULL, task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE,
  not_before REAL NOT NULL DEFAULT 0,
  PRIMARY KEY (lane, tenant, task)
) WITHOUT ROWID;
CREATE INDEX queue_task ON queue (task);
CREATE TABLE turns (tenant TEXT PRIMARY KEY, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, task INTEGER NOT NULL REFERENCES tasks,
  created_at REAL NOT NULL, left_at REAL, cut INTEGER, idempotency TEXT, fingerprint TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX jobs_tenant ON jobs (tenant, id);
CREATE INDEX jobs_task ON jobs (task);
CREATE UNIQUE INDEX jobs_idempotency ON jobs (tenant, idempotency) WHERE idempotency IS NOT NULL;
CREATE TABLE plans (
  tenant TEXT NOT NULL, id TEXT NOT NULL, cursor TEXT NOT NULL, task INTEGER NOT NULL REFERENCES tasks,
  name TEXT NOT NULL, created_at REAL NOT NULL,
  PRIMARY KEY (tenant, id)
) WITHOUT ROWID;
CREATE INDEX plans_cursor ON plans (tenant, cursor);
CREATE INDEX plans_task ON plans (task);
CREATE TABLE events (
  task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE, seq INTEGER NOT NULL,
  type TEXT NOT NULL, data TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (task, seq)
) WITHOUT ROWID;
CREATE TABLE workers (name TEXT PRIMARY KEY, pid INTEGER NOT NULL, slots INTEGER NOT NULL, seen_at REAL NOT NULL)
  WITHOUT ROWID;
CREATE TABLE keys (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL UNIQUE,
  created_at REAL NOT NULL, revoked_at REAL
) WITHOUT ROWID;
"""


def made_by_version(version: int, folder: Path) -> None:
    """A store of version 1, 2 or 3 with a job of each state, named after it, and one that left a task that goes on."""
    folder.mkdir()
    db = sqlite3.connect(folder / "store.sqlite")
    db.executescript("PRAGMA journal_mode = WAL;" + _VERSION_2)
    if version == 1:
        db.executescript(
            "DROP INDEX tasks_running; DROP INDEX tasks_status;"
            "CREATE INDEX tasks_live ON tasks (status, leased_until) WHERE status IN ('queued', 'running');"
        )
    db.execute(f"PRAGMA user_version = {min(version, 2)}")
    for k, status in enumerate(STATES, 1):
        write_as_version_2(db, k, status)
        db.execute(
            "INSERT INTO jobs (id, tenant, name, task, created_at, fingerprint) VALUES (?, 'a', ?, ?, 1.0, '')",
            (f"{k:032x}", status, k),
        )
    db.execute(
        "INSERT INTO jobs (id, tenant, name, task, created_at, left_at, cut, fingerprint)"
        " VALUES (?, 'a', 'left', 2, 1.0, 2.0, 1, '')",
        (f"{9:032x}",),
    )
    if version == 3:  # what version 2 had becomes that of 3, as it became then
        for statement in schema._STEPS[2]:
            db.execute(statement)
        db.execute("PRAGMA user_version = 3")
    db.commit()
    db.close()


def write_as_version_2(db: sqlite3.Connection, task: int, status: str) -> None:
    """The statements of that version that make a task and take it to a state."""
    db.execute(
        "INSERT INTO tasks (id, key, current, kind, lane, code, options, status, created_at, used_at)"
        " VALUES (?, ?, 1, 'plan', 1, 'c', '{}', 'queued', 1.0, 1.0)",
        (task, f"key {task}"),
    )
    if status == "queued":
        db.execute("INSERT INTO queue VALUES (1, 'a', ?, 0)", (task,))
    db.execute("UPDATE tasks SET status = ?, leased_until = 9e9, finished_at = 3.0 WHERE id = ?", (status, task))
    db.execute("INSERT OR REPLACE INTO workers VALUES ('old', 1, 1, 5.0)")
