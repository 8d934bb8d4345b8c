"""Whose turn it is, and who has been silent for too long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from planner.api.jobs.database import Row, Transaction

__all__ = ["ANY", "Able", "expired", "next_task"]

LONGEST_PAUSE_S: Final = 60.0  # no task waits longer to begin again
TENANTS: Final = 20  # looked at together: seldom does none of them have a task that is ready
ALIVE_S: Final = 10.0  # since a worker was heard of


@dataclass(frozen=True, slots=True)
class Able:
    """What a worker can do: tasks of these kinds that were asked for with its own code, and those of other code where
    no worker that lives has that.  No code: all tasks."""

    kinds: frozenset[str] = frozenset()
    code: str = ""


ANY: Final = Able()


def expired(db: Transaction, now: float, lease_s: float) -> list[Row]:
    """A lease far in the future is of a clock that was set back since."""
    return db.execute(
        "SELECT * FROM tasks INDEXED BY tasks_running"
        f" WHERE status = 'running' AND (leased_until < ? OR leased_until > ?){db.locked}",
        (now, now + 10 * lease_s + 60),
    ).fetchall()


_TENANTS: Final = """
SELECT w.tenant FROM waiting w LEFT JOIN turns u ON u.tenant = w.tenant WHERE w.lane = ?
ORDER BY COALESCE(u.turn, 0), w.first LIMIT ? OFFSET ?
"""
_READY: Final = """
SELECT q.task FROM queue q JOIN tasks t ON t.id = q.task
WHERE q.lane = :lane AND q.tenant = :tenant AND (q.not_before <= :now OR q.not_before > :longest)
  AND (:code = '' OR :kinds LIKE '% ' || t.kind || ' %' AND (t.code = :code OR t.code NOT IN
    (SELECT c.code FROM codes c JOIN workers v ON v.name = c.worker WHERE v.seen_at > :alive AND v.slots > 0)))
ORDER BY q.task LIMIT 1
"""


def next_task(db: Transaction, lanes: Sequence[int], now: float, able: Able) -> tuple[str, int] | None:
    """Tenant and task whose turn it is: the tenant served longest ago, its oldest task."""
    for lane in lanes:
        values = {
            "lane": lane,
            "now": now,
            "longest": now + LONGEST_PAUSE_S,  # later still: by a clock that was set back since
            "code": able.code,
            "kinds": f" {' '.join(sorted(able.kinds))} ",
            "alive": now - ALIVE_S,
        }
        for tenant in _tenants(db, lane):
            row = db.execute(_READY, {**values, "tenant": tenant}).fetchone()
            if row is not None:
                return tenant, row["task"]
    return None


def _tenants(db: Transaction, lane: int) -> Iterator[str]:
    """Those with tasks that wait, the one served longest ago first."""
    for before in count(0, TENANTS):
        rows = db.execute(_TENANTS, (lane, TENANTS, before)).fetchall()
        yield from (row["tenant"] for row in rows)
        if len(rows) < TENANTS:
            return
