"""Figures and names as a terminal shows them."""

from __future__ import annotations

from collections.abc import Sequence

from planner.report.words import PART_NAMES, printable

__all__ = ["PART_NAMES", "percent", "printable", "signed", "some"]


def signed(text: str) -> str:
    """With a plus sign where there is no minus and it is not zero."""
    return text if text.startswith(("-", "0 ")) else f"+{text}"


def percent(a: float, b: float) -> str:
    """B - A in percent of A; `new` where A is nothing."""
    if a == b:
        return ""
    return f"{(b - a) / abs(a):+.1%}" if a else "new"


def some(names: Sequence[str], most: int = 4) -> str:
    listed = ", ".join(printable(n) for n in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
