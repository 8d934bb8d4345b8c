"""API keys: shown once, kept as hashes.

A secret has 256 random bits, so its plain SHA-256 cannot be turned back, and finding it by its hash tells nothing by
how long it takes.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from planner.api.jobs.database import Database
from planner.api.jobs.errors import NotFound
from planner.api.jobs.records import Key

__all__ = ["MONITOR", "Keys"]

MONITOR = ".metrics"  # whose keys open the metrics of the whole service and nothing else; no tenant may be called so

PREFIX = "planner"  # lets scanners of leaked secrets know what they found


@dataclass(frozen=True, slots=True)
class Keys:
    database: Database

    def create(self, tenant: str, name: str) -> tuple[str, str]:
        """Id of the new key, and its secret, which is not kept."""
        key, secret = secrets.token_hex(6), f"{PREFIX}_{secrets.token_urlsafe(32)}"
        with self.database.write() as db:
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, NULL)", (key, tenant, name, _hash(secret), time.time()))
        return key, secret

    def authenticate(self, secret: str) -> str | None:
        """The tenant whose key it is; None where it is nobody's, or was revoked."""
        return self.holder(self.mark(secret))

    def mark(self, secret: str) -> str:
        """What is kept of a secret: it says whose it is, and does not stand for it."""
        return _hash(secret)

    def holder(self, mark: str) -> str | None:
        """The tenant whose key has this mark; None where nobody's has, or it was revoked."""
        with self.database.read() as db:
            row = db.execute("SELECT tenant FROM keys WHERE hash = ? AND revoked_at IS NULL", (mark,)).fetchone()
        return None if row is None else str(row["tenant"])

    def exist(self) -> bool:
        """Whether there has been any tenant's key, revoked ones too."""
        with self.database.read() as db:
            return db.execute("SELECT 1 FROM keys WHERE tenant <> ? LIMIT 1", (MONITOR,)).fetchone() is not None

    def list(self, tenant: str | None = None) -> list[Key]:
        """Of one tenant or of all, oldest first, revoked ones too."""
        with self.database.read() as db:
            rows = db.execute(
                "SELECT id, tenant, name, created_at, revoked_at FROM keys WHERE ? IS NULL OR tenant = ?"
                " ORDER BY created_at, id",
                (tenant, tenant),
            )
            return [Key(**dict(r)) for r in rows]

    def revoke(self, key: str) -> None:
        """At once, in every process.  NotFound."""
        with self.database.write() as db:
            done = db.execute("UPDATE keys SET revoked_at = COALESCE(revoked_at, ?) WHERE id = ?", (time.time(), key))
            if done.rowcount == 0:
                raise NotFound(f"key {key}: there is none; `planner keys list` shows all")


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
