"""How many bytes of blobs a tenant's jobs and plans refer to, and the removal of what nobody refers to."""

from __future__ import annotations

from collections.abc import Callable, Collection

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.database import Database

__all__ = ["discard", "used_bytes"]


def used_bytes(database: Database, tenant: str, beside: Collection[str]) -> int:
    """As of `Store.used_bytes`."""
    with database.read() as db:
        rows = db.execute(
            "SELECT DISTINCT f.digest, f.size FROM files f WHERE f.task IN"
            " (SELECT task FROM jobs WHERE tenant = :tenant UNION SELECT task FROM plans WHERE tenant = :tenant)",
            {"tenant": tenant},
        )
        return sum(size for digest, size in rows if digest not in beside)


def discard(database: Database, blobs: BlobStore, digest: str, wanted: Callable[[str], bool]) -> None:
    """As of `Store.discard`.  From a folder that hosts share, purging removes it: another may be about to name it."""
    if database.remote and not blobs.remote:
        return

    def keep(digest: str) -> bool:
        with database.read() as db:
            named = db.execute("SELECT 1 FROM files WHERE digest = ?", (digest,)).fetchone() is not None
        return named or wanted(digest)

    blobs.remove(digest, keep)
