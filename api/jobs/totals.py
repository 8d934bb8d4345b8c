"""How often things have happened that should be rare, since the store was made: for metrics.

They are rows of `counts` beside those that triggers write, under names that programs of earlier versions do not look
for, so that they needed no change of the tables.  They are written in the transactions that they count, so that a
worker that is killed has counted what it did, and nothing else; and workers need to listen on no port.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any, Final

from planner.api.jobs.database import Transaction

__all__ = ["DEATHS", "FAILURES", "LOST", "PURGED", "RESTARTS", "add", "death", "failure", "paused", "totals"]

LOST: Final = "lost-leases"  # by what became of the task
RESTARTS: Final = "restarts"  # of tasks, by why
DEATHS: Final = "deaths"  # of children, by how
FAILURES: Final = "failures"  # of tasks, by the name of the problem
PURGED: Final = "purged"  # by what
_ALL: Final = (LOST, RESTARTS, DEATHS, FAILURES, PURGED)

_ADD: Final = """
INSERT INTO counts (what, status, shard, n) VALUES (?, ?, 0, ?)
ON CONFLICT (what, status, shard) DO UPDATE SET n = counts.n + excluded.n
"""


def add(db: Transaction, what: str, which: str, n: int = 1) -> None:
    if n:
        db.execute(_ADD, (what, which, n))


def death(how: str) -> str:
    """What `how` is counted as: one of few words, whatever a child says."""
    if how in signal.Signals.__members__:
        return how
    known = {"status": "status", "its end": "unknown", "no process": "not-started", "its result": "invalid-result"}
    return next((name for begin, name in known.items() if how.startswith(begin)), "reader")


def failure(error: Mapping[str, Any] | None) -> str:
    """The name of the problem."""
    return str((error or {}).get("type", "")).rpartition(":")[2] or "unknown"


def totals(db: Transaction) -> dict[str, dict[str, int]]:
    """Of each kind, how often by what."""
    out: dict[str, dict[str, int]] = {what: {} for what in _ALL}
    for row in db.execute("SELECT what, status, SUM(n) AS n FROM counts GROUP BY what, status").fetchall():
        if row["what"] in out:
            out[row["what"]][row["status"]] = int(row["n"])
    return out


def paused(db: Transaction) -> int:
    """Children that stand still so that other tenants have their turns."""
    found = db.execute(
        "SELECT COUNT(*) FROM tasks WHERE status = 'running' AND progress LIKE ?", ('%"paused": true%',)
    ).fetchone()
    return int(found[0])
