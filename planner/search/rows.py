"""Memory rows: the instants at which the limit has to be checked.

Memory in use only grows where an interval starts and only falls where one ends, so it suffices to check
the maximal cliques of the intervals: the last start before an end.  Every interval covers a contiguous
range of these rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

__all__ = ["clique_instants", "covered_rows"]


def clique_instants(intervals: Iterable[tuple[int, int]]) -> list[int]:
    """Sorted instants, one in each maximal set of simultaneously alive half-open intervals."""
    alive = [(a, b) for a, b in intervals if a < b]
    starts = sorted({a for a, _ in alive})
    return sorted({starts[bisect_left(starts, b) - 1] for b in {b for _, b in alive}})


def covered_rows(instants: list[int], interval: tuple[int, int]) -> tuple[int, int]:
    """Half-open range of the rows during which `interval` is alive."""
    return bisect_left(instants, interval[0]), bisect_left(instants, interval[1])
