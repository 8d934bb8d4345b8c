"""What one tenant has becomes another's, inside a transaction of the caller's."""

from __future__ import annotations

from dataclasses import dataclass

from planner.api.jobs.database import Transaction

__all__ = ["Adopted", "adopt"]


@dataclass(frozen=True, slots=True)
class Adopted:
    """How many have changed hands."""

    jobs: int
    plans: int


def adopt(db: Transaction, of: str, by: str) -> Adopted:
    """Where both have the same plan, or have used the same idempotency key, the adopter's own stands."""
    both = {"of": of, "by": by}
    db.execute(
        "UPDATE jobs SET idempotency = NULL WHERE tenant = :of AND idempotency IN"
        " (SELECT idempotency FROM jobs WHERE tenant = :by AND idempotency IS NOT NULL)",
        both,
    )
    jobs = db.execute("UPDATE jobs SET tenant = :by WHERE tenant = :of", both).rowcount
    db.execute("DELETE FROM plans WHERE tenant = :of AND id IN (SELECT id FROM plans WHERE tenant = :by)", both)
    plans = db.execute("UPDATE plans SET tenant = :by WHERE tenant = :of", both).rowcount
    db.execute(
        "INSERT INTO queue (lane, tenant, task, not_before)"
        " SELECT lane, :by, task, not_before FROM queue WHERE tenant = :of ON CONFLICT DO NOTHING",
        both,
    )
    db.execute("DELETE FROM queue WHERE tenant = :of", both)
    return Adopted(jobs, plans)
