"""What searches keep for later ones: a folder for each set of inputs, which no child with others sees.

A child whose model makes it do what the model's author wants could write there what is no answer; it does so to nobody
but those who send that same model.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from planner.api.jobs.removal import remove
from planner.cache import Store as Cache
from planner.cache import digest_of

__all__ = ["CACHE_BYTES", "cache_of", "make_room"]

CACHE_BYTES: Final = 4 << 30  # of all together, and the most of one


def cache_of(store: Path, inputs: Mapping[str, str]) -> Path:
    """The folder, which is made.  OSError."""
    folder = store / "cache" / digest_of(dict(inputs))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def make_room(store: Path, limit: int = CACHE_BYTES) -> None:
    """What was unused for longest goes, as far as all together are larger than the limit; empty folders go with it.

    Entries lie two folders deep.  What children have nested deeper goes first, as it may be deeper than can be walked.
    """
    caches = _folders(store / "cache")
    kinds = [kind for cache in caches for kind in _folders(cache)]
    for kind in kinds:
        for nested in _folders(kind):
            remove(nested)
    Cache(store / "cache", limit).make_room()
    for folder in (*kinds, *caches):
        with contextlib.suppress(OSError):
            folder.rmdir()  # where nothing is in it


def _folders(folder: Path) -> list[Path]:
    """Those that lie in it, as far as it can be looked into."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    return []
