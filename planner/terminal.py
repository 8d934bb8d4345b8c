"""Text as a terminal may have it: names of a model are whatever its file says, and terminals obey some of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Final, TextIO

__all__ = ["Shown", "beneath", "obeys", "plain", "quoted", "takes_colour", "unfit"]

# Control characters, ends of lines, what turns the direction of writing, and halves of characters.
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_COLOURS: Final = {"error": 31, "FAILED": 31, "NO VERDICT": 33, "warning": 33, "ok": 32}
_WORDS: Final = re.compile(rf"^((?:planner[a-z -]*: )?)({'|'.join(_COLOURS)})(?=:)", re.MULTILINE)


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

    def __init__(self, stream: TextIO, *, coloured: bool = False) -> None:
        self.beneath = stream
        self.before: Callable[[str], object] | None = None  # is called before a text is written
        self._coloured = coloured

    def write(self, text: str) -> int:
        if self.before is not None:
            self.before(text)
        shown = plain(text, "\n\t")
        return self.beneath.write(_coloured(shown) if self._coloured else shown)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def obeys(stream: TextIO) -> bool:
    """Whether it is a terminal that moves and clears as it is told to."""
    return bool(stream.isatty()) and os.environ.get("TERM", "") not in ("", "dumb")


def takes_colour(stream: TextIO) -> bool:
    """Whether colour is wanted there: NO_COLOR forbids it (no-color.org), CLICOLOR=0 too, CLICOLOR_FORCE demands it
    (bixense.com/clicolors); else where the stream is a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return os.environ.get("CLICOLOR", "1") != "0" and obeys(stream)


def _coloured(text: str) -> str:
    """Error and failure red, warning yellow, ok green: the one word alone, at the beginning of a line."""
    return _WORDS.sub(lambda m: f"{m[1]}\x1b[{_COLOURS[m[2]]}m{m[2]}\x1b[0m", text)


def beneath(stream: TextIO) -> TextIO:
    """The stream that obeys, for what draws on it and makes texts `plain` itself."""
    return stream.beneath if isinstance(stream, Shown) else stream
