"""Figures and names as a terminal shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.report.words import PART_NAMES, printable

__all__ = ["PART_NAMES", "aligned", "decimals_of", "percent", "printable", "signed", "some"]


def signed(text: str) -> str:
    """With a plus sign where there is no minus and it is not zero."""
    return text if text.startswith(("-", "0 ")) else f"+{text}"


def percent(a: float, b: float) -> str:
    """B - A in percent of A; `new` where A is nothing."""
    if a == b:
        return ""
    if not a:
        return "new"
    share = 100 * (b - a) / abs(a)
    return f"{share:+.1f}%" if abs(share) >= 0.1 else f"{share:+.1g}%"


def decimals_of(largest: float) -> int:
    """How many of them show four significant digits of the largest figure."""
    return min(12, max(0, 3 - math.floor(math.log10(largest)))) if largest > 0 else 0


def some(names: Sequence[str], most: int = 4) -> str:
    listed = ", ".join(printable(n) for n in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: its first column to the left, the others to the right, the last one as it is."""
    widths = [max(len(r[i]) for r in (head, *rows)) for i in range(len(head))]
    last = len(head) - 1
    return [
        "  ".join(
            c.ljust(w) if i == 0 or (i == last and not c.endswith("%")) else c.rjust(w)
            for i, (c, w) in enumerate(zip(r, widths, strict=True))
        ).rstrip()
        for r in (head, *rows)
    ]
