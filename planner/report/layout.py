"""A layered drawing of a directed graph: who stands in which row, and where.

Sugiyama's method: an order without cycles, rows by the longest path, bends where an edge passes a row, fewer crossings
by barycentres, then positions.  Positions of a row are the least-squares answer to "as near to the neighbours as the
widths allow" (isotonic regression), which pages repeat for boxes that a reader opens.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Drawing", "draw", "spread"]

GAP = 18.0  # between neighbours of a row
BEND = 6.0  # width that a passing edge takes
_SWEEPS = 6


@dataclass(frozen=True, slots=True)
class Drawing:
    """`rows[r]`: items from left to right; items below the number of boxes are boxes, the others bends.  `x`: centre of
    every item, the leftmost edge at 0.  `segments`: pairs of items in neighbouring rows (upper, lower), those against
    the order of the graph in `against`.  `width` of the widest row."""

    rows: tuple[tuple[int, ...], ...]
    x: tuple[float, ...]
    segments: tuple[tuple[int, int], ...]
    against: frozenset[tuple[int, int]]
    width: float


def draw(widths: Sequence[float], edges: Sequence[tuple[int, int]]) -> Drawing:
    """Boxes 0 … n-1 of the given widths, in an order that is preferred where the edges leave a choice."""
    n = len(widths)
    place = _order(n, edges)
    forward: list[tuple[int, int]] = []
    turned: set[tuple[int, int]] = set()
    for a, b in dict.fromkeys(edges):
        if a == b:
            continue
        if place[a] < place[b]:
            forward.append((a, b))
        else:
            forward.append((b, a))
            turned.add((b, a))
    row = _rows(n, forward, place)
    segments, against, row_of = _bends(n, row, forward, turned)
    all_widths = [*widths, *([BEND] * (len(row_of) - n))]
    rows = _uncrossed(row_of, place, segments)
    x = _positions(rows, all_widths, segments)
    left = min((c - w / 2 for c, w in zip(x, all_widths, strict=True)), default=0.0)
    right = max((c + w / 2 for c, w in zip(x, all_widths, strict=True)), default=0.0)
    return Drawing(
        tuple(tuple(r) for r in rows),
        tuple(round(c - left, 1) for c in x),
        tuple(segments),
        frozenset(against),
        right - left,
    )


def spread(wanted: Sequence[float], widths: Sequence[float], gap: float = GAP) -> list[float]:
    """Centres nearest to those wanted (least squares) that keep the order and overlap nowhere."""
    offset = 0.0
    shifts: list[float] = []
    for i, w in enumerate(widths):
        if i:
            offset += (widths[i - 1] + w) / 2 + gap
        shifts.append(offset)
    blocks: list[list[float]] = []  # sum, count
    for want, shift in zip(wanted, shifts, strict=True):
        blocks.append([want - shift, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] >= blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    base = [total / count for total, count in blocks for _ in range(int(count))]
    return [b + s for b, s in zip(base, shifts, strict=True)]


def _order(n: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Place of every box: topological, the given order where there is a choice, and where only cycles are left."""
    after: list[list[int]] = [[] for _ in range(n)]
    waits = [0] * n
    for a, b in dict.fromkeys(edges):
        if a != b:
            after[a].append(b)
            waits[b] += 1
    ready = [i for i in range(n) if not waits[i]]
    place = [-1] * n
    rest = 0
    for number in range(n):
        if not ready:
            while place[rest] >= 0:
                rest += 1
            ready.append(rest)
            waits[rest] = 0
        i = heapq.heappop(ready)
        place[i] = number
        for b in after[i]:
            if place[b] < 0 and waits[b] > 0:
                waits[b] -= 1
                if not waits[b]:
                    heapq.heappush(ready, b)
    return place


def _rows(n: int, forward: Sequence[tuple[int, int]], place: Sequence[int]) -> list[int]:
    """By the longest path from above; boxes that nothing feeds stand right above their first reader."""
    row = [0] * n
    fed = [False] * n
    for a, b in sorted(forward, key=lambda e: place[e[0]]):
        row[b] = max(row[b], row[a] + 1)
        fed[b] = True
    nearest: dict[int, int] = {}
    for a, b in forward:
        nearest[a] = min(nearest.get(a, row[b]), row[b])
    for a, r in nearest.items():
        if not fed[a]:
            row[a] = r - 1
    return row


def _bends(
    n: int, row: Sequence[int], forward: Sequence[tuple[int, int]], turned: set[tuple[int, int]]
) -> tuple[list[tuple[int, int]], set[tuple[int, int]], list[int]]:
    """Long edges of one box share their bends; those against the order have their own."""
    row_of = list(row)
    segments: dict[tuple[int, int], None] = {}
    against: set[tuple[int, int]] = set()
    chains: dict[tuple[int, bool], list[int]] = {}
    for a, b in sorted(forward, key=lambda e: row[e[1]]):
        reverse = (a, b) in turned
        chain = chains.setdefault((a, reverse), [a])
        while row[a] + len(chain) < row[b]:
            row_of.append(row[a] + len(chain))
            _segment(segments, against, (chain[-1], len(row_of) - 1), reverse)
            chain.append(len(row_of) - 1)
        _segment(segments, against, (chain[row[b] - row[a] - 1], b), reverse)
    return list(segments), against, row_of


def _segment(
    segments: dict[tuple[int, int], None], against: set[tuple[int, int]], pair: tuple[int, int], reverse: bool
) -> None:
    segments[pair] = None
    if reverse:
        against.add(pair)


def _uncrossed(row_of: Sequence[int], place: Sequence[int], segments: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Sweeps down and up, each row sorted by the mean place of its neighbours; the best order met is kept."""
    height = max(row_of, default=-1) + 1
    above: list[list[int]] = [[] for _ in row_of]
    below: list[list[int]] = [[] for _ in row_of]
    for a, b in segments:
        below[a].append(b)
        above[b].append(a)
    rows: list[list[int]] = [[] for _ in range(height)]
    for item, number_of_row in enumerate(row_of):
        rows[number_of_row].append(item)
    for r in rows:
        r.sort(key=lambda i: place[i] if i < len(place) else len(place) + i)
    at = [0] * len(row_of)

    def number(r: list[int]) -> None:
        for k, item in enumerate(r):
            at[item] = k

    for r in rows:
        number(r)
    best, least = [list(r) for r in rows], _crossings(rows, below, at)
    for sweep in range(_SWEEPS):
        if not least:
            break
        down = sweep % 2 == 0
        neighbours = above if down else below
        for r in rows if down else reversed(rows):
            key = {i: sum(at[j] for j in neighbours[i]) / len(neighbours[i]) if neighbours[i] else at[i] for i in r}
            r.sort(key=lambda i: (key[i], at[i]))
            number(r)
        crossings = _crossings(rows, below, at)
        if crossings < least:
            best, least = [list(r) for r in rows], crossings
    return best


def _crossings(rows: Sequence[Sequence[int]], below: Sequence[Sequence[int]], at: Sequence[int]) -> int:
    count = 0
    for r in rows:
        seen: list[int] = []
        for item in r:
            ends = sorted(at[b] for b in below[item])
            count += sum(len(seen) - bisect_left(seen, e + 1) for e in ends)
            for e in ends:
                insort(seen, e)
    return count


def _positions(
    rows: Sequence[Sequence[int]], widths: Sequence[float], segments: Sequence[tuple[int, int]]
) -> list[float]:
    x = [0.0] * len(widths)
    for r in rows:
        right = 0.0
        for i in r:
            x[i] = right + widths[i] / 2
            right += widths[i] + GAP
        for i in r:
            x[i] -= right / 2
    around: tuple[list[list[int]], list[list[int]]] = ([[] for _ in widths], [[] for _ in widths])
    for a, b in segments:
        around[0][b].append(a)
        around[1][a].append(b)
    for sweep in range(_SWEEPS + 2):
        sides = (around[sweep % 2],) if sweep < _SWEEPS else around
        for r in rows if sweep % 2 == 0 else reversed(rows):
            wanted = []
            for i in r:
                near = [x[j] for side in sides for j in side[i]]
                wanted.append(sum(near) / len(near) if near else x[i])
            for i, centre in zip(r, _near(wanted, r, widths), strict=True):
                x[i] = centre
    return x


def _near(wanted: Sequence[float], row: Sequence[int], widths: Sequence[float]) -> list[float]:
    return spread(wanted, [widths[i] for i in row])
