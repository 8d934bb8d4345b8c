"""How tasks end, or begin to wait again; who has the plan of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.api.jobs.database import Row, Transaction
from planner.api.jobs.problems import problem
from planner.api.jobs.rows import WAIT, add_event, ticket
from planner.api.jobs.totals import FAILURES, LOST, RESTARTS, add, failure

__all__ = ["LOSSES", "end_task", "give_plan", "lose", "requeue", "share_plan"]

LOSSES = 30  # workers a task may lose: one that dies takes innocent tasks with it, so that more are allowed than deaths
SUSPECT = 3  # lost workers, from which on a task lets others go first
SUSPECT_PAUSE_S = 3.0


def share_plan(db: Transaction, task: int, plan: str, now: float) -> None:
    """Everyone with a job on the task has its plan."""
    jobs = db.execute(
        "SELECT tenant, name FROM jobs WHERE task = ? AND left_at IS NULL ORDER BY tenant, id", (task,)
    ).fetchall()
    for job in jobs:
        give_plan(db, job["tenant"], job["name"], task, plan, now)


def give_plan(db: Transaction, tenant: str, name: str, task: int, plan: str, now: float) -> None:
    """A plan that the tenant has already is of the latest task: while that has jobs, purging leaves it."""
    last = db.execute("SELECT MAX(cursor) FROM plans WHERE tenant = ?", (tenant,)).fetchone()[0]
    db.execute(
        "INSERT INTO plans (tenant, id, cursor, task, name, created_at) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (tenant, id) DO UPDATE SET task = excluded.task",
        (tenant, plan, ticket(now, last), task, name, now),
    )


def end_task(
    db: Transaction,
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
        "UPDATE tasks SET status = ?, current = current * ?, error = ?, worker = NULL, leased_until = NULL,"
        " finished_at = ?, used_at = ? WHERE id = ?",
        (status, int(lasting), None if error is None else json.dumps(dict(error)), now, now, task),
    )
    details: dict[str, Any] = {"plan": None, **(data or {})}
    add_event(db, task, status, details if error is None else {**details, "error": dict(error)}, now)
    if status == "failed":
        add(db, FAILURES, failure(error))


def lose(db: Transaction, row: Row, now: float, why: str = "its worker was lost") -> None:
    losses = row["losses"] + 1
    db.execute("UPDATE tasks SET losses = ? WHERE id = ?", (losses, row["id"]))
    if row["cancel"]:
        add(db, LOST, "cancelled")
        end_task(db, row["id"], "cancelled", now, lasting=False)
    elif losses >= LOSSES:
        add(db, LOST, "failed")
        message = f"{losses} workers were lost while they computed it"
        end_task(db, row["id"], "failed", now, lasting=False, error=problem("child-died", message))
    else:
        add(db, LOST, "restarted")
        requeue(db, row, now, why, now + SUSPECT_PAUSE_S if losses >= SUSPECT else 0.0, "worker-lost")


def requeue(
    db: Transaction, row: Row, now: float, why: str, not_before: float = 0.0, cause: str = "worker-stopped"
) -> None:
    """`why`: for who waits; `cause`: what it is counted as."""
    task = row["id"]
    add(db, RESTARTS, cause)
    db.execute(
        "UPDATE tasks SET status = 'queued', worker = NULL, leased_until = NULL, progress = '{}' WHERE id = ?", (task,)
    )
    wanted = db.execute("SELECT DISTINCT tenant FROM jobs WHERE task = ? AND left_at IS NULL", (task,)).fetchall()
    tenants = sorted(r["tenant"] for r in wanted) or [""]  # in one order, so that nobody waits in a circle
    db.executemany(f"{WAIT} ON CONFLICT DO NOTHING", [(row["lane"], t, task, not_before) for t in tenants])
    add_event(db, task, "restarted", {"why": why}, now)
