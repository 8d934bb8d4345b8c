"""Results that can be made again on demand take a bounded part of the store: those unused for longest go first.

Reports, traces, diffs, explanations and emitted files follow from plans that are in the store, and no job refers to
them, so that no tenant's quota counts them.  Yet one plan has dozens of them, and diffs grow with the square of plans.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.database import Database, repeated
from planner.api.jobs.usage import discard

__all__ = ["ARTIFACT_BYTES", "Evicted", "Eviction", "evict"]

ARTIFACT_BYTES: Final = 4 << 30  # of all tenants together
EVERY: Final = 100  # results that a worker finishes until it looks again
ASKED_S: Final = 120.0  # since a result was asked for, in which it may be on its way to who asked
BATCH: Final = 200  # rows of a transaction

# Plans are wanted as long as their tenants have them, and an evaluation that a job is of is a result of that job.
_UNOWNED: Final = """
SELECT t.id, t.used_at, (SELECT SUM(f.size) FROM files f WHERE f.task = t.id AND f.way = 'out') AS size FROM tasks t
WHERE t.kind <> 'plan' AND t.status = 'succeeded'
AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.task = t.id) AND NOT EXISTS (SELECT 1 FROM plans p WHERE p.task = t.id)
ORDER BY t.used_at DESC, t.id DESC"""
_GONE: Final = """
DELETE FROM tasks WHERE id = ? AND used_at = ? AND status = 'succeeded'
AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.task = tasks.id)"""


@dataclass(frozen=True, slots=True)
class Evicted:
    """How many results were removed, and their `bytes`."""

    tasks: int
    bytes: int


def evict(database: Database, blobs: BlobStore, limit: int, *, asked_s: float = ASKED_S) -> Evicted:
    """Removes results that no job refers to until the others take `limit` bytes at most.  One that was asked for within
    `asked_s` seconds stays."""
    with database.read() as db:
        now = db.now
        rows = db.execute(_UNOWNED).fetchall()
    taken, old = 0, []
    for row in rows:
        size = int(row["size"] or 0)
        taken += size
        if taken > limit and row["used_at"] < now - asked_s:
            old.append((row["id"], row["used_at"], size))
    removed = freed = 0
    for first in range(0, len(old), BATCH):
        for size, digests in _remove(database, old[first : first + BATCH]):
            removed, freed = removed + 1, freed + size
            for digest in digests:
                discard(database, blobs, digest, lambda _: False)
    return Evicted(removed, freed)


@repeated
def _remove(database: Database, tasks: list[tuple[int, float, int]]) -> list[tuple[int, list[str]]]:
    """The bytes and digests of each result that was removed: not of one that was asked for again meanwhile."""
    gone = []
    with database.write() as db:
        for task, used_at, size in tasks:
            named = db.execute("SELECT digest FROM files WHERE task = ? AND way = 'out'", (task,)).fetchall()
            if db.execute(_GONE, (task, used_at)).rowcount:
                gone.append((size, [row["digest"] for row in named]))
    return gone


class Eviction:
    """When a worker looks: after some results that it finished, in a thread of its own."""

    def __init__(self, look: Callable[[], object], every: int = EVERY) -> None:
        self._look, self._every, self._ended = look, every, 0
        self._busy = threading.Lock()

    def finished(self, kind: str) -> None:
        """A task of the kind was finished."""
        self._ended += kind != "plan"
        if self._ended >= self._every and self._busy.acquire(blocking=False):
            self._ended = 0
            threading.Thread(target=self._run, name="eviction", daemon=True).start()

    def _run(self) -> None:
        try:
            self._look()
        finally:
            self._busy.release()
