"""Tables of the store.

A job is a tenant's; the task behind it is nobody's.  `tasks.current` marks the one task of its key that new requests
join; a task that was cancelled, or failed for a passing reason, stays for its jobs alone.
"""

from __future__ import annotations

import sqlite3

from planner.api.jobs.errors import StoreUnusable

__all__ = ["VERSION", "migrate"]

VERSION = 3
FIRST = 2  # which a new store begins at: its tables are those below


def _more(kind: str, column: str = "''") -> str:
    return f"INSERT INTO counts VALUES ('{kind}' || {column}, 1) ON CONFLICT (what) DO UPDATE SET number = number + 1"


def _less(kind: str, column: str = "''") -> str:
    return f"UPDATE counts SET number = number - 1 WHERE what = '{kind}' || {column}"


# From version N to N + 1.  A store that is there is changed, never thrown away: it holds what was accepted.
_STEPS = {
    1: (
        "DROP INDEX IF EXISTS tasks_live",
        "CREATE INDEX IF NOT EXISTS tasks_running ON tasks (leased_until) WHERE status = 'running'",
        "CREATE INDEX IF NOT EXISTS tasks_status ON tasks (status, created_at)",
    ),
    # Rows are counted as they come and go: counting a million for every look of a monitor would take a second.
    2: (
        "CREATE TABLE ended_sessions (hash TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE webhooks (job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, url TEXT NOT NULL,"
        " secret TEXT NOT NULL, tries INTEGER NOT NULL, next_at REAL NOT NULL) WITHOUT ROWID",
        "CREATE TABLE counts (what TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counts SELECT 'tasks_' || status, COUNT(*) FROM tasks GROUP BY status",
        "INSERT INTO counts SELECT 'jobs', COUNT(*) FROM jobs",
        f"CREATE TRIGGER task_made AFTER INSERT ON tasks BEGIN {_more('tasks_', 'NEW.status')}; END",
        f"CREATE TRIGGER task_gone AFTER DELETE ON tasks BEGIN {_less('tasks_', 'OLD.status')}; END",
        "CREATE TRIGGER task_moved AFTER UPDATE OF status ON tasks WHEN OLD.status <> NEW.status"
        f" BEGIN {_less('tasks_', 'OLD.status')}; {_more('tasks_', 'NEW.status')}; END",
        f"CREATE TRIGGER job_made AFTER INSERT ON jobs BEGIN {_more('jobs')}; END",
        f"CREATE TRIGGER job_gone AFTER DELETE ON jobs BEGIN {_less('jobs')}; END",
    ),
}

_TABLES = """
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


def migrate(db: sqlite3.Connection) -> None:
    """Makes the tables where there are none, and changes those of an earlier version.  Called inside a transaction.

    StoreUnusable for the database of a later version.
    """
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise StoreUnusable(f"the store is of version {found}, this program knows up to {VERSION}; use the newer one")
    if found < 1:
        for statement in _TABLES.split(";\n"):
            if statement.strip():
                db.execute(statement)
    for version in range(found or FIRST, VERSION):
        for statement in _STEPS[version]:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {VERSION}")
