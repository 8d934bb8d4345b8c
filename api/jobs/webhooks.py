"""Requests that are to be sent once a job has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from planner.api.jobs.database import Database, repeated

__all__ = ["Webhook", "Webhooks"]

FARTHEST_S: Final = 7200.0  # no try is put off for longer: one that is was by a clock that was set back since


@dataclass(frozen=True, slots=True)
class Webhook:
    """`secret`: what requests are signed with; `tries`: that have failed."""

    job: str
    tenant: str
    url: str
    secret: str
    tries: int


@dataclass(frozen=True, slots=True)
class Webhooks:
    """Rows end with the delivery, the last try, or their job."""

    database: Database

    @repeated
    def add(self, job: str, url: str, secret: str) -> None:
        """A job has one; a later one takes its place."""
        with self.database.write() as db:
            db.execute(
                "INSERT INTO webhooks (job, url, secret, tries, next_at) VALUES (?, ?, ?, 0, 0) ON CONFLICT (job)"
                " DO UPDATE SET url = excluded.url, secret = excluded.secret, tries = 0, next_at = 0",
                (job, url, secret),
            )

    @repeated
    def take(self, now: float, hold_s: float, limit: int) -> list[Webhook]:
        """Those that are due, of jobs that have ended; they are due again in `hold_s` seconds unless it is said what
        became of them.  `now`: as of `Store.now`."""
        values = {"now": now, "farthest": now + FARTHEST_S}
        with self.database.read() as db:
            if db.execute(f"{_DUE} LIMIT 1", values).fetchone() is None:
                return []
        with self.database.write() as db:
            db.take_turns("webhooks")
            rows = db.execute(f"{_DUE} LIMIT :limit", {**values, "limit": limit}).fetchall()
            db.executemany("UPDATE webhooks SET next_at = ? WHERE job = ?", [(now + hold_s, r["job"]) for r in rows])
        return [Webhook(r["job"], r["tenant"], r["url"], r["secret"], r["tries"]) for r in rows]

    @repeated
    def again(self, tried: Webhook, pause_s: float) -> None:
        """A try has failed.  One that took its place meanwhile stays as it is."""
        with self.database.write(durable=False) as db:
            db.execute(
                "UPDATE webhooks SET tries = tries + 1, next_at = ? WHERE job = ? AND url = ? AND secret = ?",
                (db.now + pause_s, tried.job, tried.url, tried.secret),
            )

    @repeated
    def end(self, tried: Webhook) -> None:
        """Likewise: it was taken, or is given up."""
        with self.database.write(durable=False) as db:
            db.execute(
                "DELETE FROM webhooks WHERE job = ? AND url = ? AND secret = ?", (tried.job, tried.url, tried.secret)
            )


_DUE = """
SELECT w.job, j.tenant, w.url, w.secret, w.tries
FROM webhooks w JOIN jobs j ON j.id = w.job JOIN tasks t ON t.id = j.task
WHERE (w.next_at <= :now OR w.next_at > :farthest)
  AND (j.left_at IS NOT NULL OR t.status IN ('succeeded', 'failed', 'cancelled'))
ORDER BY w.next_at
"""
