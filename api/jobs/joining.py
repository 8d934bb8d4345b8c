"""How a request comes to a task: it joins the one that is there, or begins one."""

from __future__ import annotations

from dataclasses import dataclass

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.database import Row, Transaction
from planner.api.jobs.errors import BlobMissing, QueueFull
from planner.api.jobs.lanes import LANES
from planner.api.jobs.rows import FILE, WAIT, add_event, current_task, files_of
from planner.api.jobs.tasks import Task

__all__ = ["Joining", "waits"]

FAILURE_S = 600.0  # for which a failure is answered as it is: limits and load may have had a part in it


@dataclass(frozen=True, slots=True)
class Joining:
    """`queue`: how many tasks of one tenant may wait."""

    blobs: BlobStore
    queue: int

    def join(self, db: Transaction, task: Task, tenant: str) -> Row:
        """The row of the task, current and in the tenant's queue unless it is begun.  QueueFull, BlobMissing."""
        now = db.now
        row = current_task(db, task.key, db.locked)
        if row is not None and not self.stands(db, row):
            db.execute("UPDATE tasks SET current = 0 WHERE id = ?", (row["id"],))
            row = None
        if row is None:
            sizes = self._sizes(db, task)
            self._take_room(db, tenant)
            lane = task.lane(sum(sizes.values()))
            made = db.execute(
                "INSERT INTO tasks (key, current, kind, lane, code, options, status, created_at, used_at)"
                " VALUES (?, 1, ?, ?, ?, ?, 'queued', ?, ?) RETURNING id",
                (task.key, task.kind, lane, task.code, task.options_text, now, now),
            ).fetchone()["id"]
            inputs = [(made, n, d, sizes[n]) for n, d in task.inputs.items()]
            db.executemany(f"{FILE} (?, 'in', ?, ?, '', ?)", inputs)
            db.execute(WAIT, (lane, tenant, made, 0.0))
            add_event(db, made, "queued", {}, now)
        else:
            db.execute("UPDATE tasks SET used_at = ? WHERE id = ?", (now, row["id"]))
            if row["status"] == "queued" and not waits(db, tenant, row):
                self._take_room(db, tenant)
                db.execute(WAIT, (row["lane"], tenant, row["id"], 0.0))
        found = current_task(db, task.key)
        assert found is not None
        return found

    def stands(self, db: Transaction, row: Row) -> bool:
        """Whether a request may be answered with this task."""
        if row["status"] == "failed":
            return bool(row["finished_at"] > db.now - FAILURE_S)
        return self.blobs.hold(db, [blob.digest for blob in files_of(db, row["id"], "out").values()])

    def expect_room(self, db: Transaction, tenant: str) -> None:
        """QueueFull where as many of the tenant's tasks wait as may."""
        waiting = db.execute(
            f"SELECT COALESCE(SUM(tasks), 0) FROM waiting WHERE lane IN ({', '.join(map(str, LANES))}) AND tenant = ?",
            (tenant,),
        ).fetchone()[0]
        if waiting >= self.queue:
            raise QueueFull(f"{waiting} requests wait already, and no more than {self.queue} may; try again later")

    def _take_room(self, db: Transaction, tenant: str) -> None:
        """As `expect_room`; no other request of the tenant is let in until the transaction ends."""
        db.take_turns(f"queue {tenant}")
        self.expect_room(db, tenant)

    def _sizes(self, db: Transaction, task: Task) -> dict[str, int]:
        """The sizes of the inputs, which are not removed meanwhile.  BlobMissing."""
        sizes = {}
        for name, digest in task.inputs.items():
            try:
                sizes[name] = self.blobs.join(db, digest)
            except BlobMissing:
                message = f"{task.kind}: input {name!r} ({digest[:12]}) is not kept; put it into the blobs first"
                raise BlobMissing(message) from None
        return sizes


def waits(db: Transaction, tenant: str, row: Row) -> bool:
    """Whether the task stands in the tenant's queue."""
    place = (row["lane"], tenant, row["id"])
    return db.execute("SELECT 1 FROM queue WHERE lane = ? AND tenant = ? AND task = ?", place).fetchone() is not None
