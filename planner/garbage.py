"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["collect_seldom"]

# New containers between two looks at the young ones, young looks to a middle one, middle ones to one at everything.
_SELDOM: Final = (5_000_000, 50, 100)


def collect_seldom() -> None:
    """For a process that does one job and ends.

    A graph, its problems and its plan are millions of containers that stay until the end, and hardly any of them refers
    to itself: what is dropped is freed by its count of references.  Python's usual thresholds look through all of them
    again and again, which was a quarter of the CPU time of a search, and found next to nothing.
    """
    gc.set_threshold(*_SELDOM)
