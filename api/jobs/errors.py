"""What the store cannot do.  Each says what to do; `retry` where the same call may succeed later."""

from __future__ import annotations

__all__ = [
    "BlobDamaged",
    "BlobMissing",
    "IdempotencyConflict",
    "JobUnfinished",
    "LeaseLost",
    "NotFound",
    "QueueFull",
    "StoreBusy",
    "StoreConflict",
    "StoreDamaged",
    "StoreError",
    "StoreFull",
    "StoreUnusable",
]


class StoreError(Exception):
    """Base of all errors of the store."""

    retry = False


class NotFound(StoreError):
    """The tenant has no such job, plan or key; whether another has is not said."""


class IdempotencyConflict(StoreError):
    """The idempotency key was used for another request."""


class JobUnfinished(StoreError):
    """The job is queued or running; cancel it first."""


class QueueFull(StoreError):
    """The tenant has as many requests waiting as it may."""

    retry = True


class LeaseLost(StoreError):
    """Another worker has taken the task over, or nobody wants it any more; drop it."""


class BlobMissing(StoreError):
    """No blob of this digest is kept."""


class BlobDamaged(StoreError):
    """The file of a blob does not have its digest; it has been removed."""


class StoreBusy(StoreError):
    """Another process held the database for too long, or it cannot be reached at the moment."""

    retry = True


class StoreConflict(StoreBusy):
    """Another transaction was in the way, and nothing of this one was kept."""


class StoreFull(StoreError):
    """No space is left, or a quota is used up.  Nothing of the call was kept."""

    retry = True


class StoreDamaged(StoreError):
    """The database is not one, or is torn; restore it, or move it away to begin anew."""


class StoreUnusable(StoreError):
    """The store cannot be opened or written to, or its database is of another version."""
