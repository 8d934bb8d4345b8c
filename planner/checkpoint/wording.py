"""Lists of names for messages, cut short."""

from __future__ import annotations

from collections.abc import Iterable

from planner.emit.wording import some

__all__ = ["listed"]


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    return some(list(names))
