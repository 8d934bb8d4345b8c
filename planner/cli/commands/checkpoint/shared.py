"""What actions of `planner checkpoint` share: arguments, and how lists and sizes are printed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from planner.requests.values import not_negative

__all__ = ["LAYOUT", "add_after", "add_before", "add_rank", "size_text", "some"]

LAYOUT: Final = "a plan.json or its folder, or a strategy file of MindSpore"


def add_before(p: argparse.ArgumentParser, line: str, *, required: bool = False) -> None:
    p.add_argument("--from", dest="before", type=Path, required=required, metavar="PLAN", help=line)


def add_after(p: argparse.ArgumentParser, line: str, *, required: bool = False) -> None:
    p.add_argument("--to", dest="after", type=Path, required=required, metavar="PLAN", help=line)


def add_rank(p: argparse.ArgumentParser, line: str) -> None:
    p.add_argument(
        "--rank", type=not_negative, action="append", default=[], metavar="R", help=f"{line}; may be repeated"
    )


def some(items: Iterable[object], most: int = 12) -> str:
    """The first items, and how many more there are."""
    found = list(map(str, items))
    return ", ".join(found[:most]) + (f" and {len(found) - most} more" if len(found) > most else "")


def size_text(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} bytes"
