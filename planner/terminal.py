"""Text as a terminal may have it: names of a model are whatever its file says, and terminals obey some of it."""

from __future__ import annotations

import re
from typing import Any, Final, TextIO

__all__ = ["Shown", "beneath", "plain", "quoted", "unfit"]

# Control characters, ends of lines, what turns the direction of writing, and halves of characters.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str, keep: str = "") -> str:
    """Control, direction and other characters without a picture as `\\x1b`, but for those to `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def unfit(name: str) -> str | None:
    """The first character that no name may have, if there is one."""
    found = _UNFIT.search(name)
    return None if found is None else found[0]


def quoted(name: str | bytes, most: int = 80) -> str:
    """A name of any kind and length, for an error."""
    return ascii(name[:most]) + ("…" if len(name) > most else "")


class Shown:
    """A stream of text on which everything is `plain` but tabs and ends of lines; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.beneath = stream

    def write(self, text: str) -> int:
        return self.beneath.write(plain(text, "\n\t"))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def beneath(stream: TextIO) -> TextIO:
    """The stream that obeys, for what draws on it and makes texts `plain` itself."""
    return stream.beneath if isinstance(stream, Shown) else stream
