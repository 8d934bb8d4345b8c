"""What searches keep for later ones: a folder for each set of inputs, which no child with others sees.

A child whose model makes it do what the model's author wants could write there what is no answer; it does so to nobody
but those who send that same model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
    """What was unused for longest goes, as far as all together are larger than the limit; empty folders go with it."""
    Cache(store / "cache", limit).make_room()
    with contextlib.suppress(FileNotFoundError):
        for folder in sorted((store / "cache").rglob("*"), reverse=True):
            if folder.is_dir():
                with contextlib.suppress(OSError):
                    folder.rmdir()  # where nothing is in it
