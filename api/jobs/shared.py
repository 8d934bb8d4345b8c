"""What replicas of the service share through the database: the secret that cookies are signed with, and rates."""

from __future__ import annotations

import os

from planner.api.jobs.database import Database, repeated

__all__ = ["draw", "set_shared_secret", "shared_secret"]

SECRET = "signing"
SECRET_BYTES = 32


@repeated
def shared_secret(database: Database) -> bytes:
    """The bytes that only this service knows, made by who asks first."""
    with database.write() as db:
        made = os.urandom(SECRET_BYTES).hex()
        db.execute("INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT DO NOTHING", (SECRET, made))
        found = db.execute("SELECT value FROM secrets WHERE name = ?", (SECRET,)).fetchone()
    return bytes.fromhex(found["value"])


@repeated
def set_shared_secret(database: Database, secret: bytes) -> None:
    """Has the service know this one, as it did elsewhere."""
    with database.write() as db:
        db.execute(
            "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (SECRET, secret.hex()),
        )


@repeated
def draw(database: Database, tenant: str, most: int, rate: float, size: float, least: int = 1) -> tuple[int, float]:
    """Takes up to `most` requests from the tenant's bucket, which fills by `rate` a second up to `size`: how many, and
    what is left.  None where there are not even `least`: they would be lost while who asks waits for the others."""
    with database.write(durable=False) as db:
        now = db.now
        db.execute("INSERT INTO rates (tenant, level, at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (tenant, size, now))
        row = db.execute(f"SELECT level, at FROM rates WHERE tenant = ?{db.locked}", (tenant,)).fetchone()
        level = min(size, row["level"] + max(0.0, now - row["at"]) * rate)
        taken = min(most, int(level)) if level >= least else 0
        db.execute("UPDATE rates SET level = ?, at = ? WHERE tenant = ?", (level - taken, now, tenant))
    return taken, level - taken
