"""Text as a terminal may have it: names of a model are whatever its file says, and terminals obey some of it."""

from __future__ import annotations

__all__ = ["plain"]


def plain(text: str, keep: str = "") -> str:
    """Control, direction and other characters without a picture as `\\x1b`, but for those to `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
