"""What a job shows of a task that others had begun: as if it had begun when the job came.

That there was such a task shows, as it is answered sooner; when it was begun, how often, and what it said before the
job came do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.api.jobs.database import Row, Transaction
from planner.api.jobs.records import ENDED, Event

__all__ = ["attempts_of", "events_of", "progress_of"]

_STATES = ("queued", "started", "restarted", *sorted(ENDED))  # events that say where a task is
BEHIND_EVERY_EVENT = 2**62
_FIGURES = ("phase", "progress")  # and of which the latest says how far


def progress_of(row: Row) -> dict[str, Any]:
    return _since(json.loads(row["progress"]), _headstart(row["started_at"], row["created_at"]))


def attempts_of(row: Row) -> int:
    """Those of a job that came later than its task count as one."""
    attempts = int(row["attempts"])
    return min(1, attempts) if row["begun_at"] < row["created_at"] else attempts


def events_of(db: Transaction, row: Row, after: int, limit: int) -> list[Event]:
    """Those behind `after`, in order.  `row`: id, task, created_at, started_at, left_at and cut of a job."""
    task, created, cut = row["task"], row["created_at"], row["cut"]
    headstart = _headstart(row["started_at"], created)
    first = db.execute(
        "SELECT seq FROM events WHERE task = ? AND at >= ? ORDER BY seq LIMIT 1", (task, created)
    ).fetchone()
    last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM events WHERE task = ?", (task,)).fetchone()
    hidden = last[0] if first is None else first["seq"] - 1
    shown, attempts = _before(db, task, hidden, created, headstart) if hidden else ([], 0)
    # Numbers of a job that came later begin anywhere: counted from 1, they would say how much there was before.
    offset = int(row["id"][-6:], 16) if hidden else 0
    after -= offset
    found = [e for e in shown if e.seq > after][:limit]
    if len(found) < limit:
        rows = db.execute(
            "SELECT seq, type, data, at FROM events WHERE task = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
            (task, max(hidden, after), BEHIND_EVERY_EVENT if cut is None else cut, limit - len(found)),
        )
        found += [Event(r["seq"], r["type"], _since(json.loads(r["data"]), headstart, attempts), r["at"]) for r in rows]
    if cut is not None and after <= cut and len(found) < limit:
        found.append(Event(cut + 1, "cancelled", {"plan": None}, row["left_at"]))
    return [replace(e, seq=e.seq + offset) for e in found]


def _before(db: Transaction, task: int, hidden: int, created: float, headstart: float) -> tuple[list[Event], int]:
    """Where the task was, and how far, when the job came; and attempts that had failed by then."""
    rows = db.execute(
        "SELECT seq, type, data FROM events WHERE task = ? AND seq <= ? AND seq IN"
        " (SELECT MAX(seq) FROM events WHERE task = ? AND seq <= ? GROUP BY type) ORDER BY seq",
        (task, hidden, task, hidden),
    ).fetchall()
    latest = {r["type"]: r for r in rows}
    *_, state = (r for r in rows if r["type"] in _STATES)
    attempts = json.loads(latest["started"]["data"]).get("attempt", 1) if "started" in latest else 0
    out: list[tuple[str, dict[str, Any]]] = [("queued", {})]
    if state["type"] not in ("queued", "restarted") and "started" in latest:
        out.append(("started", {"attempt": 1}))
        out += [(kind, json.loads(latest[kind]["data"])) for kind in _FIGURES if kind in latest]
        attempts -= 1
    if state["type"] in ENDED:
        out.append((state["type"], json.loads(state["data"])))
    numbered = enumerate(out, hidden - len(out) + 1)
    return [Event(k, kind, _since(data, headstart), created) for k, (kind, data) in numbered], attempts


def _headstart(started: float | None, created: float) -> float:
    """Seconds for which the task had been computed when the job came."""
    return 0.0 if started is None else max(0.0, created - started)


def _since(figures: Mapping[str, Any], headstart: float, attempts: int = 0) -> dict[str, Any]:
    """Figures without what belongs to the time before."""
    out = dict(figures)
    if headstart and isinstance(out.get("seconds"), (int, float)):
        out["seconds"] = max(0.0, out["seconds"] - headstart)
    if attempts and "attempt" in out:
        out["attempt"] -= attempts
    return out
