"""Whose turn it is: tenants are served by the processor time that they have used.

`turns.turn` of a tenant counts milliseconds: whoever has the fewest is next, and what its tasks use is added.
Nobody is ever taken to be more than `LAG_MS` behind the tenant with the most, so that one who comes after a long time,
or for the first time, is served at once and does not shut the others out until it has caught up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from planner.api.jobs.lanes import LARGE, LIGHT

__all__ = ["LAG_MS", "START_MS", "Head", "Standing", "charge", "next_in", "standing"]

LAG_MS = 30_000
START_MS = 100  # for beginning a task: those who have used equally much take turns at once
LONGEST_PAUSE_S = 60.0  # no task waits longer to begin again


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


def next_in(db: sqlite3.Connection, lanes: Collection[int], now: float) -> Head | None:
    """Of the tenant whose turn it is, the oldest task of its first lane; among equals the lane counts, then age."""
    row = db.execute(
        "SELECT q.tenant, MIN(q.task) AS task, CASE WHEN u.turn > :floor THEN u.turn ELSE :floor END AS owed"
        " FROM queue q LEFT JOIN turns u ON u.tenant = q.tenant"
        f" WHERE q.lane IN ({', '.join(str(int(lane)) for lane in lanes)})"
        # One that is to wait longer still was put off by a clock that was set back since.
        " AND (q.not_before <= :now OR q.not_before > :latest)"
        " GROUP BY q.tenant, q.lane, u.turn ORDER BY owed, q.lane, 2 LIMIT 1",
        {"floor": _floor(db), "now": now, "latest": now + LONGEST_PAUSE_S},
    ).fetchone()
    return None if row is None else Head(row["tenant"], row["task"], row["owed"])


def charge(db: sqlite3.Connection, tenant: str, milliseconds: int) -> None:
    """Adds to what a tenant has used."""
    floor = _floor(db)
    db.execute(
        "INSERT INTO turns (tenant, turn) VALUES (:tenant, :first) ON CONFLICT (tenant) DO UPDATE"
        " SET turn = CASE WHEN turns.turn > :floor THEN turns.turn ELSE :floor END + :used",
        {"tenant": tenant, "first": floor + milliseconds, "floor": floor, "used": milliseconds},
    )


def standing(db: sqlite3.Connection, tenants: Iterable[str], now: float) -> Standing:
    floor = _floor(db)
    turns = dict.fromkeys(tenants, floor)
    for tenant in turns:
        row = db.execute("SELECT turn FROM turns WHERE tenant = ?", (tenant,)).fetchone()
        if row is not None:
            turns[tenant] = max(floor, row["turn"])
    return Standing(next_in(db, LIGHT, now), next_in(db, (LARGE,), now), turns)


def _floor(db: sqlite3.Connection) -> int:
    """What everybody has used at least, as far as turns go."""
    return max(0, int(db.execute("SELECT COALESCE(MAX(turn), 0) FROM turns").fetchone()[0]) - LAG_MS)
