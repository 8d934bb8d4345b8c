"""The trace of the request that made a job, for the spans of the worker that computes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from planner.api.jobs.database import Database, repeated
from planner.api.jobs.errors import StoreError

__all__ = ["RequestTrace", "Traces"]

_log = logging.getLogger("planner.service")


@dataclass(frozen=True, slots=True)
class RequestTrace:
    """A job, the context of its request as W3C's `traceparent` has it, and when it came."""

    job: str
    parent: str
    at: float


@dataclass(slots=True)
class Traces:
    """Rows end with their jobs.  No trace is worth a request or a result: what the store refuses is logged, and that is
    all.  So it is with tables of the version before, which have no place for them until `planner store migrate`."""

    database: Database
    refused: bool = False

    def add(self, jobs: Sequence[str], parent: str) -> None:
        """Of new jobs; one that is there already keeps the trace that it came in."""
        try:
            self._add(jobs, parent)
        except StoreError as e:
            self._refuse(e)

    @repeated
    def _add(self, jobs: Sequence[str], parent: str) -> None:
        with self.database.write(durable=False) as db:
            now = db.now
            db.executemany(
                "INSERT INTO traces (job, parent, at) VALUES (?, ?, ?) ON CONFLICT (job) DO NOTHING",
                [(job, parent, now) for job in jobs],
            )

    def of(self, task: int) -> list[RequestTrace]:
        """Of the jobs on a task, the oldest first."""
        try:
            with self.database.read() as db:
                rows = db.execute(
                    "SELECT t.job, t.parent, t.at FROM traces t JOIN jobs j ON j.id = t.job WHERE j.task = ?"
                    " ORDER BY t.job",
                    (task,),
                ).fetchall()
                return [RequestTrace(r["job"], r["parent"], r["at"]) for r in rows]
        except StoreError as e:
            self._refuse(e)
            return []

    def _refuse(self, e: StoreError) -> None:
        if not self.refused:
            self.refused = True
            _log.warning("spans of jobs do not join the traces of their requests", extra={"fields": {"why": str(e)}})
