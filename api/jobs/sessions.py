"""Sessions that were ended before their time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from planner.api.jobs.database import Database, repeated

__all__ = ["Sessions"]

KEPT_S: Final = 86400.0  # longer: hosts say by clocks of their own when a session is over


@dataclass(frozen=True, slots=True)
class Sessions:
    """A session is a signed text, which needs no row; only the end of one has a row, until its time is over."""

    database: Database

    @repeated
    def end(self, session: str, until: float) -> None:
        """At once, in every process."""
        with self.database.write() as db:
            db.execute("DELETE FROM ended_sessions WHERE until < ?", (db.now - KEPT_S,))
            db.execute(
                "INSERT INTO ended_sessions (hash, until) VALUES (?, ?) ON CONFLICT DO NOTHING", (_hash(session), until)
            )

    def ended(self, session: str) -> bool:
        with self.database.read() as db:
            found = db.execute("SELECT 1 FROM ended_sessions WHERE hash = ?", (_hash(session),)).fetchone()
        return found is not None


def _hash(session: str) -> str:
    return hashlib.sha256(session.encode()).hexdigest()
