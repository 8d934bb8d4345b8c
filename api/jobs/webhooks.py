"""Requests that are to be sent once a job has ended."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from planner.api.jobs.database import Database, Transaction, repeated

__all__ = ["Webhook", "Webhooks", "add_webhook"]

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
        """As `add_webhook`, of a job that is there already."""
        with self.database.write() as db:
            add_webhook(db, job, url, secret)

    @repeated
    def take(self, now: float, hold_s: float, limit: int, each: int, beside: Collection[str] = ()) -> list[Webhook]:
        """Those that are due, of jobs that have ended, `each` of a tenant at most and none of the tenants `beside`.

        They are due again in `hold_s` seconds unless it is said what became of them.  `now`: as of `Store.now`."""
        values: dict[str, object] = {"now": now, "farthest": now + FARTHEST_S, "limit": limit, "each": each}
        names = {f"beside{k}": tenant for k, tenant in enumerate(beside)}
        others = f"AND j.tenant NOT IN ({', '.join(f':{n}' for n in names)})" if names else ""
        with self.database.read() as db:
            rows = db.execute(_DUE.format(others=others), values | names).fetchall()
        if not rows:
            return []
        with self.database.write() as db:  # another process may have taken some of them meanwhile
            db.take_turns("webhooks")
            mine = [
                db.execute(
                    "UPDATE webhooks SET next_at = ? WHERE job = ? AND next_at = ?",
                    (now + hold_s, r["job"], r["next_at"]),
                ).rowcount
                for r in rows
            ]
        return [
            Webhook(r["job"], r["tenant"], r["url"], r["secret"], r["tries"])
            for r, taken in zip(rows, mine, strict=True)
            if taken
        ]

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


def add_webhook(db: Transaction, job: str, url: str, secret: str) -> None:
    """A job has one; a later one takes its place."""
    db.execute(
        "INSERT INTO webhooks (job, url, secret, tries, next_at) VALUES (?, ?, ?, 0, 0) ON CONFLICT (job)"
        " DO UPDATE SET url = excluded.url, secret = excluded.secret, tries = 0, next_at = 0",
        (job, url, secret),
    )


# Tenants take turns, so that many of one, or a receiver that takes its time, keep no other waiting.
_DUE: Final = """
SELECT job, tenant, url, secret, tries, next_at FROM (
  SELECT w.job, j.tenant, w.url, w.secret, w.tries, w.next_at,
    ROW_NUMBER() OVER (PARTITION BY j.tenant ORDER BY w.next_at, w.job) AS turn
  FROM webhooks w JOIN jobs j ON j.id = w.job JOIN tasks t ON t.id = j.task
  WHERE (w.next_at <= :now OR w.next_at > :farthest) {others}
    AND (j.left_at IS NOT NULL OR t.status IN ('succeeded', 'failed', 'cancelled'))
) AS due
WHERE turn <= :each ORDER BY turn, next_at, job LIMIT :limit
"""
