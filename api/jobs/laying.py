"""Inputs of a child on their way from a bucket, beside the worker's own rounds, in which leases are renewed."""

from __future__ import annotations

import threading

from planner.api.jobs.blob_store import BlobStore
from planner.api.jobs.handover import lay_in
from planner.api.jobs.lanes import LARGE
from planner.api.jobs.records import Claim
from planner.api.jobs.work import JobInput

__all__ = ["Laying"]


class Laying:
    """A place is held for the child meanwhile."""

    paused = False

    def __init__(self, claim: Claim, work: JobInput, blobs: BlobStore) -> None:
        self.claim, self.work = claim, work
        self.heavy = claim.lane == LARGE
        self._error: Exception | None = None
        # One that hangs keeps no worker from ending.
        self._thread = threading.Thread(target=self._run, args=(blobs,), name="inputs", daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Errors as of `lay_in`."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, blobs: BlobStore) -> None:
        try:
            lay_in(blobs, self.work.inputs, self.work.folder)
        except Exception as e:
            self._error = e
