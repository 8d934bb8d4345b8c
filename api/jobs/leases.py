"""Leases: which worker computes which task, and until when.

A worker claims a task for `LEASE_S` seconds and renews that while its child runs.  One whose lease has run out is taken
to be dead, and its tasks wait again.  Each claim has a token of its own, and every write of a worker names it: one that
was thought dead and is not can write nothing (LeaseLost), so that a result is seen once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.api.jobs.blobs import Blob
from planner.api.jobs.database import Database, Row, Transaction, repeated
from planner.api.jobs.endings import end_task, lose, requeue, share_plan
from planner.api.jobs.errors import LeaseLost
from planner.api.jobs.problems import problem
from planner.api.jobs.records import Claim
from planner.api.jobs.rows import FILE, TASK, add_event, files_of
from planner.api.jobs.totals import DEATHS as DEATHS_TOTAL
from planner.api.jobs.totals import add, death
from planner.api.jobs.turns import ANY, START_MS, Able, Head, Standing, charge, expired, next_in, standing

__all__ = ["DEATHS", "LEASE_S", "Beat", "Leases"]

LEASE_S = 5.0
DEATHS = 3  # children a task may kill
PAUSE_S = 0.5  # before a task that killed its child begins again, times the deaths
CLAIMS = "claims"  # of all workers take turns, so that tenants do

_SEEN_NOW = """
INSERT INTO workers (name, pid, slots, seen_at) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET pid = excluded.pid, slots = excluded.slots, seen_at = excluded.seen_at
"""
_CODE_NOW = """
INSERT INTO codes (worker, code) VALUES (?, ?) ON CONFLICT (worker) DO UPDATE SET code = excluded.code
"""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a worker's heartbeat says of the tasks it holds: `lost` to another, or to be ended (`cancelled`)."""

    lost: frozenset[int]
    cancelled: frozenset[int]


@dataclass(frozen=True, slots=True)
class Leases:
    database: Database

    @repeated
    def claim(self, worker: str, lanes: Sequence[int], lease_s: float = LEASE_S, *, able: Able = ANY) -> Claim | None:
        """The next task of these lanes, of the tenant whose turn it is; None where nothing waits that the worker is
        able to do."""
        with self.database.read() as db:
            now = db.now
            seen, lost = _charged(db), expired(db, now, lease_s)
            found = next_in(db, lanes, now, able)
            if not lost and found is None:
                return None
        with self.database.write(durable=False) as db:
            db.take_turns(CLAIMS)
            now = db.now
            for task in expired(db, now, lease_s):
                lose(db, task, now)
            if lost or _charged(db) != seen or not _waits(db, found):  # others were faster: look again
                found = _queued(db, lanes, now, able)
            if found is None:
                return None
            task_id = found.task
            db.execute("DELETE FROM queue WHERE task = ?", (task_id,))
            charge(db, found.tenant, START_MS)
            row = db.execute(
                "UPDATE tasks SET status = 'running', token = token + 1, worker = ?, leased_until = ?,"
                " attempts = attempts + 1, started_at = COALESCE(started_at, ?) WHERE id = ?"
                f" RETURNING {TASK}",
                (worker, now + lease_s, now, task_id),
            ).fetchone()
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

    def standing(self, tenants: Iterable[str], *, able: Able = ANY) -> Standing:
        """Who is next, and the turns of these tenants."""
        with self.database.read() as db:
            return standing(db, tenants, db.now, able)

    @repeated
    def move(self, claim: Claim, lane: int) -> None:
        """What the task waits with, should it begin again.  LeaseLost."""
        with self.database.write(durable=False) as db:
            _held(db, claim)
            db.execute("UPDATE tasks SET lane = ? WHERE id = ?", (lane, claim.task))

    @repeated
    def heartbeat(
        self,
        worker: str,
        claims: Iterable[Claim],
        *,
        pid: int = 0,
        slots: int = 0,
        lease_s: float = LEASE_S,
        code: str | None = None,
        used: Mapping[str, float] | None = None,
    ) -> Beat:
        """Renews the leases of a worker, and says that it lives; `slots` 0: it takes nothing new; `code`: what it
        computes with; `used`: seconds that its children have used since, by tenant."""
        lost: set[int] = set()
        cancelled: set[int] = set()
        with self.database.write(durable=False) as db:
            now = db.now
            db.execute(_SEEN_NOW, (worker, pid, slots, now))
            if code is not None:
                db.execute(_CODE_NOW, (worker, code))
            for tenant, seconds in sorted((used or {}).items()):  # in one order, so that nobody waits in a circle
                charge(db, tenant, round(1000 * seconds))
            for c in sorted(claims, key=lambda c: c.task):
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

    @repeated
    def report(
        self,
        claim: Claim,
        events: Sequence[tuple[str, Mapping[str, Any]]] = (),
        progress: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds events, and what is new of the progress.  LeaseLost."""
        with self.database.write(durable=False) as db:
            now = db.now
            row = _held(db, claim)
            if progress:
                merged = {**json.loads(row["progress"]), **progress}
                db.execute("UPDATE tasks SET progress = ? WHERE id = ?", (json.dumps(merged), claim.task))
            for kind, data in events:
                add_event(db, claim.task, kind, data, now)

    @repeated
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
        with self.database.write() as db:
            now = db.now
            _held(db, claim)
            db.execute("DELETE FROM files WHERE task = ? AND way = 'out'", (claim.task,))
            files = [(claim.task, n, b.digest, b.media_type, b.size) for n, b in result.items()]
            db.executemany(f"{FILE} (?, 'out', ?, ?, ?, ?)", files)
            db.execute(
                "UPDATE tasks SET summary = ?, plan = ? WHERE id = ?", (json.dumps(dict(summary)), plan, claim.task)
            )
            if plan is not None:
                share_plan(db, claim.task, plan, now)
            status = "cancelled" if cancelled else "succeeded"
            end_task(db, claim.task, status, now, lasting=shared and not cancelled, data={"plan": plan})

    @repeated
    def fail(self, claim: Claim, error: Mapping[str, Any] | None, *, lasting: bool, cancelled: bool = False) -> None:
        """`error`: a problem document; `lasting`: the same request would fail again, and is answered so.  LeaseLost."""
        with self.database.write() as db:
            _held(db, claim)
            status = "cancelled" if cancelled else "failed"
            end_task(db, claim.task, status, db.now, lasting=lasting and not cancelled, error=error)

    @repeated
    def died(self, claim: Claim, how: str) -> bool:
        """The child died by itself: the task waits again, or fails where that was its last chance; whether it waits.
        LeaseLost."""
        with self.database.write() as db:
            now = db.now
            row = _held(db, claim)
            deaths = row["deaths"] + 1
            db.execute("UPDATE tasks SET deaths = ? WHERE id = ?", (deaths, claim.task))
            add(db, DEATHS_TOTAL, death(how))
            if row["cancel"]:
                end_task(db, claim.task, "cancelled", now, lasting=False)
            elif deaths >= DEATHS:
                message = f"the process that computed it ended {deaths} times without an answer, at last: {how}"
                end_task(db, claim.task, "failed", now, lasting=False, error=problem("child-died", message))
            else:
                requeue(db, row, now, how, now + PAUSE_S * deaths, "child-died", claim.tenant)
                return True
        return False

    @repeated
    def lost(self, claim: Claim, why: str) -> None:
        """The child ended with something that was not the task's doing: the task waits again.  LeaseLost."""
        with self.database.write() as db:
            lose(db, _held(db, claim), db.now, why, claim.tenant)

    @repeated
    def release(self, claim: Claim, why: str = "the worker was stopped") -> None:
        """Gives a task back, untouched.  LeaseLost."""
        with self.database.write() as db:
            now = db.now
            row = _held(db, claim)
            if row["cancel"]:
                end_task(db, claim.task, "cancelled", now, lasting=False)
            else:
                requeue(db, row, now, why, tenant=claim.tenant)

    @repeated
    def bury(self, worker: str) -> None:
        """The worker is known to be dead: its tasks wait again, now."""
        with self.database.write(durable=False) as db:
            now = db.now
            held = db.execute(
                f"SELECT {TASK} FROM tasks WHERE status = 'running' AND worker = ?{db.locked}", (worker,)
            ).fetchall()
            for task in held:
                lose(db, task, now)
            _forget(db, worker)

    @repeated
    def leave(self, worker: str) -> None:
        """The worker has gone."""
        with self.database.write(durable=False) as db:
            _forget(db, worker)

    def jobs(self, claim: Claim) -> list[str]:
        """The jobs that wait for the task."""
        with self.database.read() as db:
            rows = db.execute("SELECT id FROM jobs WHERE task = ? AND left_at IS NULL ORDER BY id", (claim.task,))
            return [r["id"] for r in rows]

    def waiting(self) -> bool:
        """Whether any task waits."""
        with self.database.read() as db:
            return db.execute("SELECT 1 FROM queue LIMIT 1").fetchone() is not None

    def workers(self, within_s: float = 2 * LEASE_S) -> dict[str, int]:
        """Slots of the workers that are ready and were heard of lately, by name."""
        with self.database.read() as db:
            now = db.now  # later than that: by a clock that was set back since
            rows = db.execute(
                "SELECT name, slots FROM workers WHERE seen_at > ? AND seen_at < ? AND slots > 0",
                (now - within_s, now + within_s),
            )
            return {r["name"]: r["slots"] for r in rows}


def _forget(db: Transaction, worker: str) -> None:
    db.execute("DELETE FROM codes WHERE worker = ?", (worker,))
    db.execute("DELETE FROM workers WHERE name = ?", (worker,))


def _charged(db: Transaction) -> int:
    """Another number once anybody has claimed anything."""
    return int(db.execute("SELECT COALESCE(SUM(turn), 0) FROM turns").fetchone()[0])


def _waits(db: Transaction, found: Head | None) -> bool:
    """Whether the task still waits; it goes on waiting until the transaction ends."""
    locked = f"SELECT 1 FROM tasks WHERE id = ? AND status = 'queued'{db.locked}"
    return found is not None and db.execute(locked, (found.task,)).fetchone() is not None


def _queued(db: Transaction, lanes: Sequence[int], now: float, able: Able) -> Head | None:
    """The task whose turn it is, and nobody ends it meanwhile."""
    while (found := next_in(db, lanes, now, able)) is not None:
        if _waits(db, found):
            return found
        db.execute("DELETE FROM queue WHERE task = ?", (found.task,))  # it was given up while we looked
    return None


def _held(db: Transaction, claim: Claim) -> Row:
    row: Row | None = db.execute(
        f"SELECT {TASK} FROM tasks WHERE id = ? AND token = ? AND status = 'running'{db.locked}",
        (claim.task, claim.token),
    ).fetchone()
    if row is None:
        raise LeaseLost(f"task {claim.task}: held by another worker by now, or ended; what this one has is dropped")
    return row
