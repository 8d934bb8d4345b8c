"""Errors of PostgreSQL as those of the store."""

from __future__ import annotations

from typing import Final

import psycopg
from psycopg_pool import PoolTimeout, TooManyRequests

from planner.api.jobs.errors import (
    NotFound,
    StoreBusy,
    StoreConflict,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnusable,
)

__all__ = ["store_error"]

# Another transaction was in the way; a key that it has made in the meantime, or a row that it has taken away.
_CONFLICTS: Final = frozenset(("40001", "40P01", "23505", "23503"))
_FULL: Final = frozenset(("53100", "53400"))
_DAMAGED: Final = frozenset(("XX001", "XX002"))
# Connections have run out, a lock, a statement or a pause between two took too long, the server stops, or only reads.
_PASSING: Final = frozenset(
    ("53000", "53200", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25006", "25P03")
)
# A pooler refuses what a connection begins with, or gives each transaction another connection (26000: a statement that
# was prepared on the one before).
_POOLED: Final = "26000", "unsupported startup parameter"


def store_error(where: str, e: psycopg.Error) -> StoreError:
    """`where`: the database, without its password."""
    code = e.sqlstate or ""
    said = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
    if code == _POOLED[0] or _POOLED[1] in said:
        return StoreUnusable(
            f"{where}: a pooler stands between, which does not pass on what the store needs ({said}); name the server"
            " itself, or a pooler in session mode that ignores the startup parameter `options` (docs/deploy.md)"
        )
    if code in _CONFLICTS:
        return StoreConflict(f"{where}: others wrote to the same rows ({said}); try again")
    if code in _FULL:
        return StoreFull(f"{where}: no space is left ({said}); nothing of the call was kept")
    if code in _DAMAGED:
        return StoreDamaged(f"{where}: {said}; restore it from a backup")
    if isinstance(e, psycopg.DataError) and not code:  # a text that was not even sent: no row can hold a NUL
        return NotFound(f"{where}: there is nothing of that name ({said})")
    if isinstance(e, PoolTimeout | TooManyRequests):
        return StoreBusy(f"{where}: no connection came free in time; try again")
    if code in _PASSING or code.startswith("08") or (not code and isinstance(e, psycopg.OperationalError)):
        return StoreBusy(f"{where}: cannot be asked at the moment ({said}); try again")
    return StoreUnusable(f"{where}: {said}")
