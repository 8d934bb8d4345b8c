"""API keys: shown once, kept as hashes.

A secret has 256 random bits, so its plain SHA-256 cannot be turned back, and finding it by its hash tells nothing by
how long it takes.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from planner.api.jobs.adoption import Adopted, adopt
from planner.api.jobs.database import Database, Transaction, repeated
from planner.api.jobs.errors import NotFound
from planner.api.jobs.records import Key

__all__ = ["MONITOR", "Keys"]

MONITOR = ".metrics"  # whose keys open the metrics of the whole service and nothing else; no tenant may be called so

PREFIX = "planner"  # lets scanners of leaked secrets know what they found


@dataclass(frozen=True, slots=True)
class Keys:
    database: Database

    @repeated
    def create(self, tenant: str, name: str) -> tuple[str, str]:
        """Id of the new key, and its secret, which is not kept."""
        with self.database.write() as db:
            return _create(db, tenant, name)

    @repeated
    def create_adopting(self, tenant: str, name: str, of: str) -> tuple[str, str, Adopted]:
        """As `create`; what the tenant `of` has belongs to the key's tenant from then on, both or neither."""
        with self.database.write() as db:
            return *_create(db, tenant, name), adopt(db, of, tenant)

    def jobs_of(self, tenant: str) -> bool:
        """Whether the tenant has any job."""
        with self.database.read() as db:
            return db.execute("SELECT 1 FROM jobs WHERE tenant = ? LIMIT 1", (tenant,)).fetchone() is not None

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
                "SELECT id, tenant, name, created_at, revoked_at FROM keys WHERE tenant = COALESCE(?, tenant)"
                " ORDER BY created_at, id",
                (tenant,),
            )
            return [Key(r["id"], r["tenant"], r["name"], r["created_at"], r["revoked_at"]) for r in rows]

    @repeated
    def revoke(self, key: str) -> None:
        """At once, in every process.  NotFound."""
        with self.database.write() as db:
            done = db.execute("UPDATE keys SET revoked_at = COALESCE(revoked_at, ?) WHERE id = ?", (db.now, key))
            if done.rowcount == 0:
                raise NotFound(f"key {key}: there is none; `planner keys list` shows all")


def _create(db: Transaction, tenant: str, name: str) -> tuple[str, str]:
    key, secret = secrets.token_hex(6), f"{PREFIX}_{secrets.token_urlsafe(32)}"
    db.execute(
        "INSERT INTO keys (id, tenant, name, hash, created_at) VALUES (?, ?, ?, ?, ?)",
        (key, tenant, name, _hash(secret), db.now),
    )
    return key, secret


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
