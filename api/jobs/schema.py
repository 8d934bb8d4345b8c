"""Tables of the store.

A job is a tenant's; the task behind it is nobody's.  `tasks.current` marks the one task of its key that new requests
join; a task that was cancelled, or failed for a passing reason, stays for its jobs alone.

`jobs.status`, `counts` and `waiting` follow from other rows.  Triggers write them, so that lists by status, metrics and
claims look at few rows, and so that they stay right while a program of an earlier version writes to the same store.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from planner.api.jobs.errors import StoreUnusable

__all__ = ["TABLES", "TRACES", "VERSION", "migrate"]

VERSION: Final = 4

_INDEXES: Final = {
    "tasks_current": "CREATE UNIQUE INDEX tasks_current ON tasks (key) WHERE current = 1",
    "tasks_running": "CREATE INDEX tasks_running ON tasks (leased_until) WHERE status = 'running'",
    "tasks_status": "CREATE INDEX tasks_status ON tasks (status, created_at)",
    "jobs_task": "CREATE INDEX jobs_task ON jobs (task, tenant, id)",
    "jobs_status": "CREATE INDEX jobs_status ON jobs (tenant, status, id)",
    "turns_turn": "CREATE INDEX turns_turn ON turns (turn)",
}

_COUNTS: Final = """
CREATE TABLE counts (
  what TEXT NOT NULL, status TEXT NOT NULL, shard INTEGER NOT NULL, n INTEGER NOT NULL,
  PRIMARY KEY (what, status, shard)
) WITHOUT ROWID"""
_WAITING: Final = """
CREATE TABLE waiting (
  lane INTEGER NOT NULL, tenant TEXT NOT NULL, tasks INTEGER NOT NULL, first INTEGER NOT NULL,
  PRIMARY KEY (lane, tenant)
) WITHOUT ROWID"""
_CODES: Final = "CREATE TABLE codes (worker TEXT PRIMARY KEY, code TEXT NOT NULL) WITHOUT ROWID"
_BLOBS: Final = """
CREATE TABLE blobs (
  digest TEXT PRIMARY KEY, size INTEGER NOT NULL, touched_at REAL NOT NULL, stored_at REAL, doomed_at REAL
) WITHOUT ROWID"""
_SECRETS: Final = "CREATE TABLE secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID"
_ENDED_SESSIONS: Final = "CREATE TABLE ended_sessions (hash TEXT PRIMARY KEY, until REAL NOT NULL) WITHOUT ROWID"
_WEBHOOKS: Final = """
CREATE TABLE webhooks (
  job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, url TEXT NOT NULL, secret TEXT NOT NULL,
  tries INTEGER NOT NULL, next_at REAL NOT NULL
) WITHOUT ROWID"""
TRACES: Final = """
CREATE TABLE traces (
  job TEXT PRIMARY KEY REFERENCES jobs ON DELETE CASCADE, parent TEXT NOT NULL, at REAL NOT NULL
) WITHOUT ROWID"""
_RATES: Final = "CREATE TABLE rates (tenant TEXT PRIMARY KEY, level REAL NOT NULL, at REAL NOT NULL) WITHOUT ROWID"

TABLES: Final = f"""
CREATE TABLE tasks (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key TEXT NOT NULL, current INTEGER NOT NULL, kind TEXT NOT NULL, lane INTEGER NOT NULL, code TEXT NOT NULL,
  options TEXT NOT NULL,
  status TEXT NOT NULL, cancel INTEGER NOT NULL DEFAULT 0,
  token INTEGER NOT NULL DEFAULT 0, worker TEXT, leased_until REAL,
  attempts INTEGER NOT NULL DEFAULT 0, deaths INTEGER NOT NULL DEFAULT 0, losses INTEGER NOT NULL DEFAULT 0,
  created_at REAL NOT NULL, started_at REAL, finished_at REAL, used_at REAL NOT NULL,
  progress TEXT NOT NULL DEFAULT '{{}}', summary TEXT NOT NULL DEFAULT '{{}}', error TEXT, plan TEXT
);
{_INDEXES["tasks_current"]};
{_INDEXES["tasks_running"]};
{_INDEXES["tasks_status"]};
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
{_INDEXES["turns_turn"]};
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, tenant TEXT NOT NULL, name TEXT NOT NULL, task INTEGER NOT NULL REFERENCES tasks,
  created_at REAL NOT NULL, left_at REAL, cut INTEGER, idempotency TEXT, fingerprint TEXT NOT NULL, status TEXT
) WITHOUT ROWID;
CREATE INDEX jobs_tenant ON jobs (tenant, id);
{_INDEXES["jobs_status"]};
{_INDEXES["jobs_task"]};
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
{_COUNTS};
{_WAITING};
{_CODES};
{_BLOBS};
{_SECRETS};
{_RATES};
{_ENDED_SESSIONS};
{_WEBHOOKS};
{TRACES};
"""


def _counted(what: str, row: str, by: int) -> str:
    return (
        f"INSERT INTO counts (what, status, shard, n) VALUES ('{what}', {row}.status, 0, {by})"
        f" ON CONFLICT (what, status, shard) DO UPDATE SET n = n + {by};"
    )


_STATUS: Final = "CASE WHEN left_at IS NOT NULL THEN 'cancelled' ELSE (SELECT status FROM tasks WHERE id = task) END"
_TRIGGERS: Final = (
    "CREATE TRIGGER tasks_made AFTER INSERT ON tasks BEGIN " + _counted("tasks", "NEW", 1) + " END",
    "CREATE TRIGGER tasks_gone AFTER DELETE ON tasks BEGIN " + _counted("tasks", "OLD", -1) + " END",
    "CREATE TRIGGER tasks_moved AFTER UPDATE OF status ON tasks WHEN NEW.status <> OLD.status BEGIN "
    + _counted("tasks", "OLD", -1)
    + _counted("tasks", "NEW", 1)
    + " UPDATE jobs SET status = NEW.status WHERE task = NEW.id AND left_at IS NULL; END",
    "CREATE TRIGGER jobs_counted AFTER INSERT ON jobs WHEN NEW.status IS NOT NULL BEGIN "
    + _counted("jobs", "NEW", 1)
    + " END",
    # As programs of before wrote them.
    "CREATE TRIGGER jobs_made AFTER INSERT ON jobs WHEN NEW.status IS NULL BEGIN"
    f" UPDATE jobs SET status = {_STATUS} WHERE id = NEW.id; END",
    "CREATE TRIGGER jobs_left AFTER UPDATE OF left_at ON jobs BEGIN"
    f" UPDATE jobs SET status = {_STATUS} WHERE id = NEW.id; END",
    "CREATE TRIGGER jobs_moved AFTER UPDATE OF status ON jobs WHEN NEW.status IS NOT OLD.status BEGIN "
    + _counted("jobs", "NEW", 1)
    + " UPDATE counts SET n = n - 1 WHERE what = 'jobs' AND status = OLD.status AND shard = 0; END",
    "CREATE TRIGGER queue_joined AFTER INSERT ON queue BEGIN"
    " INSERT INTO waiting (lane, tenant, tasks, first) VALUES (NEW.lane, NEW.tenant, 1, NEW.task)"
    " ON CONFLICT (lane, tenant) DO UPDATE SET tasks = tasks + 1; END",
    "CREATE TRIGGER queue_left AFTER DELETE ON queue BEGIN"
    " UPDATE waiting SET tasks = tasks - 1 WHERE lane = OLD.lane AND tenant = OLD.tenant;"
    " DELETE FROM waiting WHERE lane = OLD.lane AND tenant = OLD.tenant AND tasks <= 0; END",
    "CREATE TRIGGER jobs_gone AFTER DELETE ON jobs BEGIN " + _counted("jobs", "OLD", -1) + " END",
)

# From version N to N + 1.  A store that is there is changed, never thrown away: it holds what was accepted.
_STEPS: Final = {
    1: (
        "DROP INDEX IF EXISTS tasks_live",
        _INDEXES["tasks_running"].replace("INDEX", "INDEX IF NOT EXISTS"),
        _INDEXES["tasks_status"].replace("INDEX", "INDEX IF NOT EXISTS"),
    ),
    2: (
        "ALTER TABLE jobs ADD COLUMN status TEXT",
        f"UPDATE jobs SET status = {_STATUS}",
        "DROP INDEX tasks_current",
        "DROP INDEX jobs_task",
        _INDEXES["tasks_current"],
        _INDEXES["jobs_task"],
        _INDEXES["jobs_status"],
        _INDEXES["turns_turn"],
        _COUNTS,
        _WAITING,
        _CODES,
        _BLOBS,
        _SECRETS,
        _RATES,
        _ENDED_SESSIONS,
        _WEBHOOKS,
        "INSERT INTO counts (what, status, shard, n) SELECT 'tasks', status, 0, COUNT(*) FROM tasks GROUP BY status",
        "INSERT INTO counts (what, status, shard, n) SELECT 'jobs', status, 0, COUNT(*) FROM jobs GROUP BY status",
        "INSERT INTO waiting (lane, tenant, tasks, first)"
        " SELECT lane, tenant, COUNT(*), MIN(task) FROM queue GROUP BY lane, tenant",
        *_TRIGGERS,
    ),
    3: (TRACES,),
}


def migrate(db: sqlite3.Connection) -> None:
    """Makes the tables where there are none, and changes those of an earlier version.  Called inside a transaction.

    StoreUnusable for the database of a later version.
    """
    found = int(db.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise StoreUnusable(f"the store is of version {found}, this program knows up to {VERSION}; use the newer one")
    if found < 1:
        for statement in (*TABLES.split(";\n"), *_TRIGGERS):
            if statement.strip():
                db.execute(statement)
    else:
        for version in range(found, VERSION):
            for statement in _STEPS[version]:
                db.execute(statement)
    if found < VERSION:
        db.execute(f"PRAGMA user_version = {VERSION}")
