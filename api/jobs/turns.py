"""Whose turn it is, and who has been silent for too long.

Tenants are served by the processor time that they have used: `turns.turn` of a tenant counts milliseconds, whoever has
the fewest is next, and what its tasks use is added.  Nobody is ever taken to be more than `LAG_MS` behind the tenant
with the most, so that one who comes after a long time, or for the first time, is served at once and does not shut the
others out until it has caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from planner.api.jobs.database import Row, Transaction
from planner.api.jobs.lanes import LARGE, LIGHT
from planner.api.jobs.rows import TASK

__all__ = ["ANY", "LAG_MS", "START_MS", "Able", "Head", "Standing", "charge", "expired", "next_in", "standing"]

LAG_MS: Final = 30_000
START_MS: Final = 100  # for beginning a task: those who have used equally much take turns at once
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


@dataclass(frozen=True, slots=True)
class Head:
    """The task that is next, for whom, and that tenant's turn."""

    tenant: str
    task: int
    turn: int


@dataclass(frozen=True, slots=True)
class Standing:
    """Who is next among short and among long work, and the turns of tenants."""

    light: Head | None = None
    heavy: Head | None = None
    turns: Mapping[str, int] = field(default_factory=dict)


def expired(db: Transaction, now: float, lease_s: float) -> list[Row]:
    """A lease far in the future is of a clock that was set back since."""
    return db.execute(
        f"SELECT {TASK} FROM tasks INDEXED BY tasks_running"
        f" WHERE status = 'running' AND (leased_until < ? OR leased_until > ?){db.locked}",
        (now, now + 10 * lease_s + 60),
    ).fetchall()


_TENANTS: Final = """
SELECT w.tenant, CASE WHEN u.turn > :floor THEN u.turn ELSE :floor END AS owed
FROM waiting w LEFT JOIN turns u ON u.tenant = w.tenant WHERE w.lane = :lane
ORDER BY owed, w.first LIMIT :most OFFSET :before
"""
_READY: Final = """
SELECT q.task FROM queue q JOIN tasks t ON t.id = q.task
WHERE q.lane = :lane AND q.tenant = :tenant AND (q.not_before <= :now OR q.not_before > :longest)
  AND (:code = '' OR :kinds LIKE '% ' || t.kind || ' %' AND (t.code = :code OR t.code NOT IN
    (SELECT c.code FROM codes c JOIN workers v ON v.name = c.worker
     WHERE v.seen_at > :alive AND v.seen_at < :later AND v.slots > 0)))
ORDER BY q.task LIMIT 1
"""


def next_in(db: Transaction, lanes: Collection[int], now: float, able: Able = ANY) -> Head | None:
    """Of the tenant whose turn it is, the oldest task of its first lane; among equals the lane counts, then age."""
    values: dict[str, Any] = {
        "floor": _floor(db),
        "now": now,
        "longest": now + LONGEST_PAUSE_S,  # later still: by a clock that was set back since
        "code": able.code,
        "kinds": f" {' '.join(sorted(able.kinds))} ",
        "alive": now - ALIVE_S,
        "later": now + ALIVE_S,  # later still: likewise
    }
    found: list[tuple[int, int, int, str]] = []
    for lane in lanes:
        for tenant, owed in _tenants(db, lane, values["floor"]):
            row = db.execute(_READY, {**values, "lane": lane, "tenant": tenant}).fetchone()
            if row is not None:
                found.append((owed, lane, row["task"], tenant))
                break
    if not found:
        return None
    turn, _, task, tenant = min(found)
    return Head(tenant, task, turn)


def charge(db: Transaction, tenant: str, milliseconds: int) -> None:
    """Adds to what a tenant has used."""
    floor = _floor(db)
    db.execute(
        "INSERT INTO turns (tenant, turn) VALUES (:tenant, :first) ON CONFLICT (tenant) DO UPDATE"
        " SET turn = CASE WHEN turns.turn > :floor THEN turns.turn ELSE :floor END + :used",
        {"tenant": tenant, "first": floor + milliseconds, "floor": floor, "used": milliseconds},
    )


def standing(db: Transaction, tenants: Iterable[str], now: float, able: Able = ANY) -> Standing:
    floor = _floor(db)
    turns = dict.fromkeys(tenants, floor)
    for tenant in turns:
        row = db.execute("SELECT turn FROM turns WHERE tenant = ?", (tenant,)).fetchone()
        if row is not None:
            turns[tenant] = max(floor, row["turn"])
    return Standing(next_in(db, LIGHT, now, able), next_in(db, (LARGE,), now, able), turns)


def _tenants(db: Transaction, lane: int, floor: int) -> Iterator[tuple[str, int]]:
    """Those with tasks that wait, and what each has used, the one that used the least first."""
    for before in count(0, TENANTS):
        rows = db.execute(_TENANTS, {"lane": lane, "floor": floor, "most": TENANTS, "before": before}).fetchall()
        yield from ((row["tenant"], row["owed"]) for row in rows)
        if len(rows) < TENANTS:
            return


def _floor(db: Transaction) -> int:
    """What everybody has used at least, as far as turns go."""
    return max(0, int(db.execute("SELECT COALESCE(MAX(turn), 0) FROM turns").fetchone()[0]) - LAG_MS)
