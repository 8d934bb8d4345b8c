"""Answers kept on disk under digests of all that they depend on.  Nothing here imports anything heavy: a hit costs
milliseconds."""

from __future__ import annotations

from planner.cache.keys import digest_of, file_digest, source_digest
from planner.cache.store import DEFAULT_SIZE, Contents, Store, default_folder

__all__ = ["DEFAULT_SIZE", "Contents", "Store", "default_folder", "digest_of", "file_digest", "source_digest"]
