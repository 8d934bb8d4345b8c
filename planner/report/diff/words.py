"""Figures and names as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from planner.report.figures import PARTS

__all__ = ["PART_NAMES", "percent", "printable", "signed", "some"]

PART_NAMES: Final = {part: name for part, (name, _) in PARTS.items()}


def signed(text: str) -> str:
    """With a plus sign where there is no minus and it is not zero."""
    return text if text.startswith(("-", "0 ")) else f"+{text}"


def percent(a: float, b: float) -> str:
    """B - A in percent of A; `new` where A is nothing."""
    if a == b:
        return ""
    return f"{(b - a) / abs(a):+.1%}" if a else "new"


def printable(text: str, most: int = 72) -> str:
    """Without what a terminal would obey or hide; the middle of long ones left out."""
    plain = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
    half = (most - 1) // 2
    return plain if len(plain) <= most else f"{plain[:half]}…{plain[-half:]}"


def some(names: Sequence[str], most: int = 4) -> str:
    told = ", ".join(printable(n) for n in names[:most])
    return told + (f" and {len(names) - most} more" if len(names) > most else "")
