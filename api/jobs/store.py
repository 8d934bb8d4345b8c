"""What was accepted, for whom, and how far it is.

A job belongs to a tenant; the task behind it may serve many.  Every method is one transaction, and may be called from
any thread of any process that has opened the folder.  What `submit` returned is kept, whatever is killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.blobs import Blobs
from planner.api.jobs.database import Database, Transaction, repeated
from planner.api.jobs.endings import end_task, give_plan
from planner.api.jobs.errors import IdempotencyConflict, JobUnfinished, NotFound
from planner.api.jobs.eviction import Evicted, evict
from planner.api.jobs.joined import events_of
from planner.api.jobs.joining import Joining, waits
from planner.api.jobs.keys import Keys
from planner.api.jobs.leases import Leases
from planner.api.jobs.purge import Purged, purge
from planner.api.jobs.records import ENDED, Event, JobRecord, Plan, Submitted, TaskState
from planner.api.jobs.rows import (
    JOB,
    PLAN,
    TASK,
    current_task,
    files_of,
    job_of,
    job_record,
    moment_of,
    plan_of,
    state_of,
    ticket,
)
from planner.api.jobs.sessions import Sessions
from planner.api.jobs.sqlite import SqliteDatabase
from planner.api.jobs.tasks import Submission, Task
from planner.api.jobs.totals import paused, totals
from planner.api.jobs.traces import Traces
from planner.api.jobs.usage import discard, used_bytes
from planner.api.jobs.webhooks import Webhooks, add_webhook

__all__ = ["Store"]

QUEUE = 100  # requests of one tenant that may wait
USED_EVERY = 3600.0  # seconds between two notes that a result was used,
ASKED_EVERY = 60.0  # and that one was which may be evicted
BEHIND_EVERY_EVENT = 2**62
TRIED = "written to at last"  # no tenant is called so
BEHIND_ALL = "~"  # sorts behind every ticket
TOGETHER = 500  # tasks looked at by one statement


class Store:
    """The folder holds `store.sqlite` and `blobs/` where no other database and blobs are given, and what this host
    alone needs.  `queue`: how many tasks of one tenant may wait.

    Any method may raise StoreBusy, StoreFull (try again), StoreDamaged or StoreUnusable.
    """

    def __init__(
        self, folder: Path, *, queue: int = QUEUE, database: Database | None = None, blobs: BlobStore | None = None
    ) -> None:
        self.folder = folder
        self.database: Database = SqliteDatabase(folder / "store.sqlite") if database is None else database
        self.blobs: BlobStore = Blobs(folder / "blobs") if blobs is None else blobs
        self.keys = Keys(self.database)
        self.leases = Leases(self.database)
        self.sessions = Sessions(self.database)
        self.webhooks = Webhooks(self.database)
        self.traces = Traces(self.database)
        self._joining = Joining(self.blobs, queue)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where it lies on this host, or on a file system that hosts share."""
        return (self.folder, self.blobs.folder) if isinstance(self.blobs, Blobs) else (self.folder,)

    # Jobs

    def submit(
        self, tenant: str, task: Task, *, name: str, idempotency: str | None = None, fingerprint: str = ""
    ) -> Submitted:
        """A job on the task, which is begun, joined, or done already.

        With an idempotency key that the tenant has used: the job of then.  IdempotencyConflict where that had another
        fingerprint; QueueFull; BlobMissing where an input is not kept.
        """
        return self.submit_all(tenant, [Submission(task, name, idempotency, fingerprint)])[0]

    @repeated
    def submit_all(self, tenant: str, submissions: Sequence[Submission]) -> list[Submitted]:
        """As `submit`, of each: all of them or, where one is refused, none."""
        with self.database.write() as db:
            made = [self._submit(db, tenant, submission, db.now) for submission in submissions]
            for submission, found in zip(submissions, made, strict=True):
                if submission.webhook is not None:
                    add_webhook(db, found.job.id, *submission.webhook)
            return made

    def _submit(self, db: Transaction, tenant: str, s: Submission, now: float) -> Submitted:
        if s.idempotency is not None:
            known = db.execute(
                "SELECT id, fingerprint FROM jobs WHERE tenant = ? AND idempotency = ?", (tenant, s.idempotency)
            ).fetchone()
            if known is not None:
                if known["fingerprint"] != s.fingerprint:
                    raise IdempotencyConflict("this idempotency key was used for another request; take a new one")
                return Submitted(job_record(db, tenant, known["id"]), created=False)
        row = self._joining.join(db, s.task, tenant)
        job = ticket(now, _last_job(db))
        db.execute(
            "INSERT INTO jobs (id, tenant, name, task, created_at, idempotency, fingerprint, status)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (job, tenant, s.name, row["id"], now, s.idempotency, s.fingerprint, row["status"]),
        )
        if row["plan"] is not None:
            give_plan(db, tenant, s.name, row["id"], row["plan"], now)
        return Submitted(job_record(db, tenant, job), created=True)

    def expect_room(self, tenant: str, task: Task | None = None, idempotency: str | None = None) -> bool:
        """Whether `submit` would add nothing that the tenant has not; QueueFull where it would refuse.  Without a task:
        of one that nobody has begun.  Writes nothing."""
        with self.database.read() as db:
            known = "SELECT 1 FROM jobs WHERE tenant = ? AND idempotency = ?"
            if idempotency is not None and db.execute(known, (tenant, idempotency)).fetchone():
                return True
            row = None if task is None else current_task(db, task.key)
            begun = row is not None and self._joining.stands(db, row)
            if row is None or not begun or (row["status"] == "queued" and not waits(db, tenant, row)):
                self._joining.expect_room(db, tenant)
            return False

    def used_bytes(self, tenant: str, beside: Collection[str] = ()) -> int:
        """Of the blobs that the tenant's jobs and plans refer to, each once, without those of the digests `beside`."""
        return used_bytes(self.database, tenant, beside)

    def discard(self, digest: str, wanted: Callable[[str], bool]) -> None:
        """Removes a blob that no task names, and that is not `wanted` by a request that has not named it yet."""
        discard(self.database, self.blobs, digest, wanted)

    @repeated
    def forget_job(self, tenant: str, job: str) -> None:
        """The tenant has the job no more; its plan stays until that is forgotten, too.  NotFound, JobUnfinished."""
        with self.database.write() as db:
            if not job_record(db, tenant, job).ended:
                raise JobUnfinished(f"job {job} has not ended; cancel it first")
            db.execute("DELETE FROM jobs WHERE id = ?", (job,))

    def answered(self, tenant: str, task: Task) -> JobRecord | None:
        """The tenant's latest job on this task where that has succeeded and all of its result is there: an equal
        request needs no other.  Writes nothing, so that it takes a fraction of a millisecond."""
        with self.database.read() as db:
            row = current_task(db, task.key)
            if row is None or row["status"] != "succeeded" or row["used_at"] < db.now - USED_EVERY:
                return None
            found = db.execute(
                f"{JOB} WHERE j.task = ? AND j.tenant = ? AND j.left_at IS NULL ORDER BY j.id DESC LIMIT 1",
                (row["id"], tenant),
            ).fetchone()
            if found is None or (row["plan"] is not None and found["plan"] is None):
                return None
            return job_of(found) if self._joining.stands(db, row) else None

    def job(self, tenant: str, job: str) -> JobRecord:
        """NotFound."""
        with self.database.read() as db:
            return job_record(db, tenant, job)

    def jobs(
        self, tenant: str, status: str | None = None, limit: int = 50, after: str | None = None
    ) -> list[JobRecord]:
        """Newest first; `after`: the id of the last one seen."""
        with self.database.read() as db:
            of_status = "" if status is None else " AND j.status = :status"
            rows = db.execute(
                f"{JOB} WHERE j.tenant = :tenant{of_status} AND j.id < :after ORDER BY j.id DESC LIMIT :limit",
                {"tenant": tenant, "after": after or BEHIND_ALL, "status": status, "limit": limit},
            )
            return [job_of(r) for r in rows]

    @repeated
    def cancel(self, tenant: str, job: str) -> JobRecord:
        """Gives the job up.  Others may want its task still; else the task ends, with the best plan so far where a
        search has one: then the job is `running` until it is in.  A job that has ended stays as it is.  NotFound."""
        with self.database.write() as db:
            now = db.now
            found = job_record(db, tenant, job)
            if db.locked:  # others may have changed the task since
                db.execute(f"SELECT 1 FROM tasks WHERE id = ?{db.locked}", (found.task,)).fetchone()
                found = job_record(db, tenant, job)
            if found.ended:
                return found
            others = "SELECT 1 FROM jobs WHERE task = ? AND id <> ? AND left_at IS NULL"
            if db.execute(f"{others} LIMIT 1", (found.task, job)).fetchone():
                last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM events WHERE task = ?", (found.task,)).fetchone()
                db.execute("UPDATE jobs SET left_at = ?, cut = ? WHERE id = ?", (now, last[0], job))
                if not db.execute(f"{others} AND tenant = ? LIMIT 1", (found.task, job, tenant)).fetchone():
                    db.execute("DELETE FROM queue WHERE task = ? AND tenant = ?", (found.task, tenant))
            elif found.status == "queued":
                end_task(db, found.task, "cancelled", now, lasting=False)
            else:
                db.execute("UPDATE tasks SET cancel = 1, current = 0 WHERE id = ?", (found.task,))
            return job_record(db, tenant, job)

    def events(self, tenant: str, job: str, after: int = 0, limit: int = 1000) -> list[Event]:
        """Those with a higher `seq` than `after`, in order.  NotFound."""
        with self.database.read() as db:
            row = db.execute(
                "SELECT j.id, j.task, j.created_at, j.left_at, j.cut, t.started_at"
                " FROM jobs j JOIN tasks t ON t.id = j.task WHERE j.tenant = ? AND j.id = ?",
                (tenant, job),
            ).fetchone()
            if row is None:
                raise NotFound(f"job {job}: there is none")
            return events_of(db, row, after, limit)

    # Tasks without a job: artifacts, diffs

    @repeated
    def ensure(self, task: Task, tenant: str = "") -> TaskState:
        """The task's state, begun where nobody has.  Wait for its end with `state`: a failure for a passing reason is
        told there, and begun anew here.  QueueFull, BlobMissing."""
        with self.database.read() as db:
            now = db.now
            row = current_task(db, task.key)
            if row is not None and row["used_at"] > now - ASKED_EVERY and row["status"] != "queued":
                state = state_of(db, row)
                if self._joining.stands(db, row):
                    return state
        with self.database.write() as db:
            return state_of(db, self._joining.join(db, task, tenant))

    def state(self, task: int) -> TaskState:
        """NotFound where it was purged."""
        with self.database.read() as db:
            row = db.execute(f"SELECT {TASK} FROM tasks WHERE id = ?", (task,)).fetchone()
            if row is None:
                raise NotFound(f"task {task}: there is none")
            return state_of(db, row)

    @repeated
    def recover(self, digest: str, tenant: str = "", apart: str = "") -> TaskState | None:
        """Computes again what a damaged or missing blob was the result of, for a tenant `apart` where one is named: the
        state to wait for, None where the blob was no result.  Equal bytes come out unless the code has changed or a
        time limit cut the search."""
        with self.database.write() as db:
            rows = db.execute(
                f"SELECT {TASK} FROM tasks WHERE id IN (SELECT task FROM files WHERE digest = ? AND way = 'out')"
                f" ORDER BY id DESC{db.locked}",
                (digest,),
            ).fetchall()
            if not rows:
                return None
            db.executemany("UPDATE tasks SET current = 0 WHERE id = ?", [(r["id"],) for r in rows])
            inputs = {name: blob.digest for name, blob in files_of(db, rows[0]["id"], "in").items()}
            task = Task(rows[0]["kind"], inputs, json.loads(rows[0]["options"]), apart=apart)
        return self.ensure(task, tenant)

    # Plans

    def plan(self, tenant: str, plan: str) -> Plan:
        """NotFound."""
        with self.database.read() as db:
            row = db.execute(f"{PLAN} WHERE p.tenant = ? AND p.id = ?", (tenant, plan)).fetchone()
            if row is None:
                raise NotFound(f"plan {plan}: there is none")
            return plan_of(db, row)

    def plans(self, tenant: str, limit: int = 50, after: str | None = None) -> list[Plan]:
        """Newest first; `after`: the cursor of the last one seen."""
        with self.database.read() as db:
            rows = db.execute(
                f"{PLAN} WHERE p.tenant = ? AND p.cursor < ? ORDER BY p.cursor DESC LIMIT ?",
                (tenant, after or BEHIND_ALL, limit),
            ).fetchall()
            return [plan_of(db, r) for r in rows]

    @repeated
    def forget(self, tenant: str, plan: str) -> None:
        """The tenant has the plan no more; purging removes what nobody has.  NotFound."""
        with self.database.write() as db:
            if db.execute("DELETE FROM plans WHERE tenant = ? AND id = ?", (tenant, plan)).rowcount == 0:
                raise NotFound(f"plan {plan}: there is none")

    # The whole

    def version(self) -> int:
        """Differs once anything was written by anyone: cheap to ask while waiting."""
        return self.database.version()

    def changes(self, since: int) -> frozenset[int] | None:
        """Tasks that were written to after that version; None: it may have been any."""
        return self.database.changes(since)

    def stamps(self, tasks: Collection[int]) -> dict[int, tuple[Any, ...]]:
        """Of each task that is there, what differs once its state, its events, or the jobs on it have changed."""
        out: dict[int, tuple[Any, ...]] = {}
        listed = list(tasks)
        with self.database.read() as db:
            for k in range(0, len(listed), TOGETHER):
                some = listed[k : k + TOGETHER]
                rows = db.execute(
                    "SELECT t.id, t.status, t.cancel, (SELECT MAX(seq) FROM events e WHERE e.task = t.id),"
                    " (SELECT COUNT(j.left_at) FROM jobs j WHERE j.task = t.id)"
                    f" FROM tasks t WHERE t.id IN ({', '.join('?' * len(some))})",
                    some,
                )
                out |= {row[0]: (row[1], row[2], row[3], row[4]) for row in rows}
        return out

    def expect_writable(self) -> None:
        """StoreFull, StoreBusy or StoreUnusable where a request could not be accepted."""
        self.blobs.expect_room()
        with self.database.write(durable=False) as db:
            if self.database.remote:  # its disk is not that of the blobs, and a server may be one that only reads
                db.execute(
                    "INSERT INTO rates (tenant, level, at) VALUES (?, 0, ?) ON CONFLICT (tenant)"
                    " DO UPDATE SET at = excluded.at",
                    (TRIED, db.now),
                )

    def now(self) -> float:
        """The moment, by the clock that all hosts of this store go by."""
        with self.database.read() as db:
            return db.now

    def latest(self) -> float | None:
        """When the newest job came; None where there is none."""
        with self.database.read() as db:
            last = _last_job(db)
        return None if last is None else moment_of(last)

    def counts(self) -> dict[str, Any]:
        """For metrics: `tasks` by status, `jobs` queued, running and ended, `oldest_s` waiting, children that are
        `paused`, `workers` that are ready, and their `slots`."""
        with self.database.read() as db:
            now = db.now
            rows = db.execute("SELECT what, status, SUM(n) AS n FROM counts GROUP BY what, status").fetchall()
            oldest = db.execute("SELECT MIN(created_at) FROM tasks WHERE status = 'queued'").fetchone()[0]
            standing_still = paused(db)
        tasks, jobs = ({r["status"]: int(r["n"]) for r in rows if r["what"] == what} for what in ("tasks", "jobs"))
        out: dict[str, Any] = {
            "tasks": dict.fromkeys(("queued", "running", *sorted(ENDED)), 0) | tasks,
            "jobs": {s: jobs.get(s, 0) for s in ("queued", "running")} | {"ended": sum(jobs.get(s, 0) for s in ENDED)},
            "oldest_s": 0.0 if oldest is None else max(0.0, now - oldest),
            "paused": standing_still,
        }
        workers = self.leases.workers()
        return out | {"workers": len(workers), "slots": sum(workers.values())}

    def totals(self) -> dict[str, dict[str, int]]:
        """For metrics: how often tasks were lost, restarted and failed, children died and what was purged."""
        with self.database.read() as db:
            return totals(db)

    def purge(self, retention_s: float, failed_s: float | None = None) -> Purged:
        """Removes jobs, plans and results that ended or were used longer ago, and blobs that nothing names; `failed_s`:
        seconds after which that is so of what a task that failed or was cancelled without a plan refers to."""
        return purge(self.database, self.blobs, retention_s, failed_s)

    def evict(self, limit: int) -> Evicted:
        """Removes results that no job refers to, those unused for longest first, until they take `limit` bytes."""
        return evict(self.database, self.blobs, limit)


def _last_job(db: Transaction) -> str | None:
    """Id of the newest job of all."""
    found: str | None = db.execute("SELECT MAX(id) FROM jobs").fetchone()[0]
    return found
