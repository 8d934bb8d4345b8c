"""A store that several hosts share, looked through while they work: nothing of it is changed."""

from __future__ import annotations

import hashlib
from typing import Final

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.database import Database
from planner.api.jobs.errors import BlobMissing, StoreDamaged
from planner.api.upkeep._folder import Findings

__all__ = ["examine_shared"]

# What triggers write, beside the rows that it follows from; each finds what does not agree.
_FOLLOWS: Final = {
    "jobs whose status is not that of their task": "SELECT j.id FROM jobs j JOIN tasks t ON t.id = j.task"
    " WHERE j.status <> CASE WHEN j.left_at IS NULL THEN t.status ELSE 'cancelled' END LIMIT 1",
    "tasks that were counted wrongly": "SELECT status FROM ("
    " SELECT status, n FROM counts WHERE what = 'tasks' UNION ALL SELECT status, -1 FROM tasks) c"
    " GROUP BY status HAVING SUM(n) <> 0",
    "jobs that were counted wrongly": "SELECT status FROM ("
    " SELECT status, n FROM counts WHERE what = 'jobs' UNION ALL SELECT status, -1 FROM jobs) c"
    " GROUP BY status HAVING SUM(n) <> 0",
    "tenants whose waiting tasks were counted wrongly": "SELECT lane, tenant FROM ("
    " SELECT lane, tenant, tasks AS n FROM waiting UNION ALL SELECT lane, tenant, -1 FROM queue) w"
    " GROUP BY lane, tenant HAVING SUM(n) <> 0",
    "tasks that wait and are in no queue": "SELECT t.id FROM tasks t WHERE t.status = 'queued'"
    " AND NOT EXISTS (SELECT 1 FROM queue q WHERE q.task = t.id) LIMIT 1",
}


def examine_shared(database: Database, blobs: BlobStore) -> Findings:
    """Reads all rows and every blob that one of them names."""
    found = Findings()
    try:
        database.check()
    except StoreDamaged as e:
        found.database.append(str(e))
        return found
    with database.read(patient=True) as db:
        for what, statement in _FOLLOWS.items():
            row = db.execute(statement).fetchone()
            if row is not None:
                found.database.append(f"there are {what}, one of them {tuple(row)}")
        found.jobs = int(db.execute("SELECT COUNT(*) FROM jobs").fetchone()[0])
        named = [row["digest"] for row in db.execute("SELECT DISTINCT digest FROM files ORDER BY digest").fetchall()]
    for digest in named:
        content = hashlib.sha256()
        try:
            for piece in blobs.content(digest):
                content.update(piece)
                found.bytes += len(piece)
        except BlobMissing:
            found.missing.append(digest)
            continue
        found.blobs += 1
        if content.hexdigest() != digest:
            found.damaged.append(digest)
    return found
