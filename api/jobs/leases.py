"""Who works on what.

A worker claims a task for `LEASE_S` seconds and renews that while its child runs.  One whose lease has run out is taken
to be dead, and its tasks wait again.  Each claim has a token of its own, and every write of a worker names it: one that
was thought dead and is not can write nothing (LeaseLost), so that a result is seen once.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.api.jobs.blobs import Blob
from planner.api.jobs.database import Database
from planner.api.jobs.errors import LeaseLost
from planner.api.jobs.problems import problem
from planner.api.jobs.records import Claim
from planner.api.jobs.rows import add_event, files_of, ticket
from planner.api.jobs.turns import START_MS, Standing, charge, next_in, standing

__all__ = ["DEATHS", "LEASE_S", "LOSSES", "Beat", "Leases", "end_task", "give_plan", "share_plan"]

LEASE_S = 5.0
DEATHS = 3  # children a task may kill
LOSSES = 30  # workers it may lose: one that dies takes innocent tasks with it, so that more are allowed
PAUSE_S = 0.5  # before a task that killed its child begins again, times the deaths
SUSPECT = 3  # lost workers, from which on a task lets others go first
SUSPECT_PAUSE_S = 3.0


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker's heartbeat says of the tasks it holds: `lost` to another, or to be ended (`cancelled`)."""

    lost: frozenset[int]
    cancelled: frozenset[int]


@dataclass(frozen=True, slots=True)
class Leases:
    database: Database

    def claim(self, worker: str, lanes: Sequence[int], lease_s: float = LEASE_S) -> Claim | None:
        """The next task of these lanes, of the tenant whose turn it is; None where nothing waits."""
        now = time.time()
        with self.database.read() as db:
            if not _expired(db, now, lease_s) and next_in(db, lanes, now) is None:
                return None
        with self.database.write(durable=False) as db:
            for task in _expired(db, now, lease_s):
                _lose(db, task, now)
            found = next_in(db, lanes, now)
            if found is None:
                return None
            task_id = found.task
            db.execute("DELETE FROM queue WHERE task = ?", (task_id,))
            charge(db, found.tenant, START_MS)
            db.execute(
                "UPDATE tasks SET status = 'running', token = token + 1, worker = ?, leased_until = ?,"
                " attempts = attempts + 1, started_at = COALESCE(started_at, ?) WHERE id = ?",
                (worker, now + lease_s, now, task_id),
            )
            row = db.execute("SELECT * FROM tasks WHERE id = ?", (task_id,)).fetchone()
            add_event(db, task_id, "started", {"attempt": row["attempts"]}, now)
            inputs = {name: blob.digest for name, blob in files_of(db, task_id, "in").items()}
            return Claim(
                task=task_id,
                token=row["token"],
                kind=row["kind"],
                lane=row["lane"],
                inputs=inputs,
                options=json.loads(row["options"]),
                attempt=row["attempts"],
                leased_until=now + lease_s,
                tenant=found.tenant,
            )

    def standing(self, tenants: Iterable[str]) -> Standing:
        """Who is next, and the turns of these tenants."""
        with self.database.read() as db:
            return standing(db, tenants, time.time())

    def move(self, claim: Claim, lane: int) -> None:
        """What the task waits with, should it begin again.  LeaseLost."""
        with self.database.write(durable=False) as db:
            _held(db, claim)
            db.execute("UPDATE tasks SET lane = ? WHERE id = ?", (lane, claim.task))

    def heartbeat(
        self,
        worker: str,
        claims: Iterable[Claim],
        *,
        pid: int = 0,
        slots: int = 0,
        lease_s: float = LEASE_S,
        used: Mapping[str, float] | None = None,
    ) -> Beat:
        """Renews the leases of a worker, and says that it lives; `slots` 0: it takes nothing new; `used`: seconds that
        its children have used since, by tenant."""
        now = time.time()
        lost: set[int] = set()
        cancelled: set[int] = set()
        with self.database.write(durable=False) as db:
            db.execute("INSERT OR REPLACE INTO workers VALUES (?, ?, ?, ?)", (worker, pid, slots, now))
            for tenant, seconds in (used or {}).items():
                charge(db, tenant, round(1000 * seconds))
            for c in claims:
                held = db.execute(
                    "UPDATE tasks SET leased_until = ? WHERE id = ? AND token = ? AND status = 'running'"
                    " RETURNING cancel",
                    (now + lease_s, c.task, c.token),
                ).fetchone()
                if held is None:
                    lost.add(c.task)
                elif held["cancel"]:
                    cancelled.add(c.task)
        return Beat(frozenset(lost), frozenset(cancelled))

    def ends_requested(self, claims: Iterable[Claim]) -> Beat:
        """As `heartbeat`, without writing."""
        with self.database.read() as db:
            rows = {
                c.task: db.execute(
                    "SELECT cancel FROM tasks WHERE id = ? AND token = ? AND status = 'running'", (c.task, c.token)
                ).fetchone()
                for c in claims
            }
        return Beat(
            frozenset(t for t, r in rows.items() if r is None),
            frozenset(t for t, r in rows.items() if r is not None and r["cancel"]),
        )

    def report(
        self,
        claim: Claim,
        events: Sequence[tuple[str, Mapping[str, Any]]] = (),
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds events, and what is new of the progress.  LeaseLost."""
        now = time.time()
        with self.database.write(durable=False) as db:
            row = _held(db, claim)
            if progress:
                merged = {**json.loads(row["progress"]), **progress}
                db.execute("UPDATE tasks SET progress = ? WHERE id = ?", (json.dumps(merged), claim.task))
            for kind, data in events:
                add_event(db, claim.task, kind, data, now)

    def finish(
        self,
        claim: Claim,
        result: Mapping[str, Blob],
        summary: Mapping[str, Any],
        *,
        plan: str | None = None,
        cancelled: bool = False,
        shared: bool = True,
    ) -> None:
        """The result, seen at once by all who wait for it.  `cancelled`: it is what was in hand when the end was asked
        for; not `shared`: later requests compute it again.  LeaseLost."""
        now = time.time()
        with self.database.write() as db:
            _held(db, claim)
            db.execute("DELETE FROM files WHERE task = ? AND way = 'out'", (claim.task,))
            files = [(claim.task, n, b.digest, b.media_type, b.size) for n, b in result.items()]
            db.executemany("INSERT INTO files VALUES (?, 'out', ?, ?, ?, ?)", files)
            db.execute(
                "UPDATE tasks SET summary = ?, plan = ? WHERE id = ?", (json.dumps(dict(summary)), plan, claim.task)
            )
            if plan is not None:
                share_plan(db, claim.task, plan, now)
            status = "cancelled" if cancelled else "succeeded"
            end_task(db, claim.task, status, now, lasting=shared and not cancelled, data={"plan": plan})

    def fail(self, claim: Claim, error: Mapping[str, Any] | None, *, lasting: bool, cancelled: bool = False) -> None:
        """`error`: a problem document; `lasting`: the same request would fail again, and is answered so.  LeaseLost."""
        with self.database.write() as db:
            _held(db, claim)
            status = "cancelled" if cancelled else "failed"
            end_task(db, claim.task, status, time.time(), lasting=lasting and not cancelled, error=error)

    def died(self, claim: Claim, how: str) -> bool:
        """The child died by itself: the task waits again, or fails where that was its last chance; whether it waits.
        LeaseLost."""
        now = time.time()
        with self.database.write() as db:
            row = _held(db, claim)
            deaths = row["deaths"] + 1
            db.execute("UPDATE tasks SET deaths = ? WHERE id = ?", (deaths, claim.task))
            if row["cancel"]:
                end_task(db, claim.task, "cancelled", now, lasting=False)
            elif deaths >= DEATHS:
                message = f"the process that computed it ended {deaths} times without an answer, at last: {how}"
                end_task(db, claim.task, "failed", now, lasting=False, error=problem("child-died", message))
            else:
                _requeue(db, row, now, how, not_before=now + PAUSE_S * deaths)
                return True
        return False

    def release(self, claim: Claim, why: str = "the worker was stopped") -> None:
        """Gives a task back, untouched.  LeaseLost."""
        now = time.time()
        with self.database.write() as db:
            row = _held(db, claim)
            if row["cancel"]:
                end_task(db, claim.task, "cancelled", now, lasting=False)
            else:
                _requeue(db, row, now, why)

    def bury(self, worker: str) -> None:
        """The worker is known to be dead: its tasks wait again, now."""
        now = time.time()
        with self.database.write(durable=False) as db:
            held = db.execute("SELECT * FROM tasks WHERE status = 'running' AND worker = ?", (worker,)).fetchall()
            for task in held:
                _lose(db, task, now)
            db.execute("DELETE FROM workers WHERE name = ?", (worker,))

    def leave(self, worker: str) -> None:
        """The worker has gone."""
        with self.database.write(durable=False) as db:
            db.execute("DELETE FROM workers WHERE name = ?", (worker,))

    def waiting(self) -> bool:
        """Whether any task waits."""
        with self.database.read() as db:
            return db.execute("SELECT 1 FROM queue LIMIT 1").fetchone() is not None

    def workers(self, within_s: float = 2 * LEASE_S) -> dict[str, int]:
        """Slots of the workers that are ready and were heard of lately, by name."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT name, slots FROM workers WHERE seen_at > ? AND slots > 0", (time.time() - within_s,)
            )
            return {r["name"]: r["slots"] for r in rows}


def share_plan(db: sqlite3.Connection, task: int, plan: str, now: float) -> None:
    """Everyone with a job on the task has its plan."""
    jobs = db.execute(
        "SELECT tenant, name FROM jobs WHERE task = ? AND left_at IS NULL ORDER BY id", (task,)
    ).fetchall()
    for job in jobs:
        give_plan(db, job["tenant"], job["name"], task, plan, now)


def give_plan(db: sqlite3.Connection, tenant: str, name: str, task: int, plan: str, now: float) -> None:
    """A plan that the tenant has already is of the latest task: while that has jobs, purging leaves it."""
    last = db.execute("SELECT MAX(cursor) FROM plans WHERE tenant = ?", (tenant,)).fetchone()[0]
    db.execute(
        "INSERT INTO plans VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (tenant, id) DO UPDATE SET task = excluded.task",
        (tenant, plan, ticket(last), task, name, now),
    )


def end_task(
    db: sqlite3.Connection,
    task: int,
    status: str,
    now: float,
    *,
    lasting: bool,
    data: Mapping[str, Any] | None = None,
    error: Mapping[str, Any] | None = None,
) -> None:
    """`lasting`: later requests are answered with this."""
    db.execute("DELETE FROM queue WHERE task = ?", (task,))
    db.execute(
        "UPDATE tasks SET status = ?, current = current AND ?, error = ?, worker = NULL, leased_until = NULL,"
        " finished_at = ?, used_at = ? WHERE id = ?",
        (status, lasting, None if error is None else json.dumps(dict(error)), now, now, task),
    )
    details: dict[str, Any] = {"plan": None, **(data or {})}
    add_event(db, task, status, details if error is None else {**details, "error": dict(error)}, now)


def _held(db: sqlite3.Connection, claim: Claim) -> sqlite3.Row:
    row: sqlite3.Row | None = db.execute(
        "SELECT * FROM tasks WHERE id = ? AND token = ? AND status = 'running'", (claim.task, claim.token)
    ).fetchone()
    if row is None:
        raise LeaseLost(f"task {claim.task}: held by another worker by now, or ended; what this one has is dropped")
    return row


def _expired(db: sqlite3.Connection, now: float, lease_s: float) -> list[sqlite3.Row]:
    """A lease far in the future is of a clock that was set back since."""
    return db.execute(
        "SELECT * FROM tasks INDEXED BY tasks_running"
        " WHERE status = 'running' AND (leased_until < ? OR leased_until > ?)",
        (now, now + 10 * lease_s + 60),
    ).fetchall()


def _lose(db: sqlite3.Connection, row: sqlite3.Row, now: float) -> None:
    losses = row["losses"] + 1
    db.execute("UPDATE tasks SET losses = ? WHERE id = ?", (losses, row["id"]))
    if row["cancel"]:
        end_task(db, row["id"], "cancelled", now, lasting=False)
    elif losses >= LOSSES:
        message = f"{losses} workers were lost while they computed it"
        end_task(db, row["id"], "failed", now, lasting=False, error=problem("child-died", message))
    else:
        _requeue(db, row, now, "its worker was lost", now + SUSPECT_PAUSE_S if losses >= SUSPECT else 0.0)


def _requeue(db: sqlite3.Connection, row: sqlite3.Row, now: float, why: str, not_before: float = 0.0) -> None:
    task = row["id"]
    db.execute(
        "UPDATE tasks SET status = 'queued', worker = NULL, leased_until = NULL, progress = '{}' WHERE id = ?", (task,)
    )
    wanted = db.execute("SELECT DISTINCT tenant FROM jobs WHERE task = ? AND left_at IS NULL", (task,)).fetchall()
    tenants = [r["tenant"] for r in wanted] or [""]
    db.executemany(
        "INSERT OR IGNORE INTO queue VALUES (?, ?, ?, ?)", [(row["lane"], t, task, not_before) for t in tenants]
    )
    add_event(db, task, "restarted", {"why": why}, now)
