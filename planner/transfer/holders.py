"""The fewest holders that have everything that is needed: a minimum hitting set."""

from __future__ import annotations

from collections.abc import Collection, Iterable

__all__ = ["fewest"]

_NODES = 200_000  # of the search; beyond them the best that was found stands


def fewest(needs: Iterable[Collection[int]], *, have: Collection[int] = ()) -> tuple[int, ...]:
    """The smallest set of holders of which every need has one, in order; `have` are in it for free, and not returned.

    Each need is the holders that could serve it.  Exact, but for cases that no layout of a mesh makes, in which a
    search of 200,000 nodes ends early.  ValueError where nobody can serve a need.
    """
    free = frozenset(have)
    left = {frozenset(n) for n in needs}
    if frozenset() in left:
        raise ValueError("a need that no holder can serve")
    left = {n for n in left if not n & free}
    return tuple(sorted(_Search().smallest(left)))


class _Search:
    def __init__(self) -> None:
        self.nodes = 0

    def smallest(self, needs: set[frozenset[int]]) -> frozenset[int]:
        chosen, rest = _reduced(needs)
        if not rest:
            return chosen
        found = _greedy(rest)
        return chosen | (self._below(rest, len(found)) or found)

    def _below(self, needs: set[frozenset[int]], limit: int) -> frozenset[int] | None:
        """The smallest set of fewer than `limit` holders; None where there is none, or the search has to end."""
        self.nodes += 1
        if self.nodes > _NODES or _apart(needs) >= limit:
            return None
        best = None
        narrow = min(needs, key=lambda n: (len(n), sorted(n)))
        for holder in sorted(narrow, key=lambda h: (-sum(h in n for n in needs), h)):
            more, rest = _reduced({n for n in needs if holder not in n})
            taken: frozenset[int] | None = more | {holder}
            assert taken is not None
            if rest:
                beyond = self._below(rest, limit - len(taken)) if len(taken) < limit else None
                taken = None if beyond is None else taken | beyond
            if taken is not None and len(taken) < limit:
                best, limit = taken, len(taken)
        return best


def _reduced(needs: set[frozenset[int]]) -> tuple[frozenset[int], set[frozenset[int]]]:
    """(holders that are taken in some smallest set, what is left to serve)."""
    chosen: set[int] = set()
    while needs:
        needs = {n for n in needs if not any(m < n for m in needs)} if len(needs) < 2_000 else needs
        single = {next(iter(n)) for n in needs if len(n) == 1}
        if single:
            chosen |= single
            needs = {n for n in needs if not n & single}
            continue
        serves: dict[int, set[frozenset[int]]] = {}
        for n in needs:
            for h in n:
                serves.setdefault(h, set()).add(n)
        kept: list[int] = []
        for h in sorted(serves, key=lambda h: (-len(serves[h]), h)):
            if not any(serves[h] <= serves[k] for k in kept):
                kept.append(h)
        if len(kept) == len(serves):
            break
        alive = frozenset(kept)
        needs = {n & alive for n in needs}
    return frozenset(chosen), needs


def _greedy(needs: set[frozenset[int]]) -> frozenset[int]:
    chosen: set[int] = set()
    left = set(needs)
    while left:
        counts: dict[int, int] = {}
        for n in left:
            for h in n:
                counts[h] = counts.get(h, 0) + 1
        taken = min(counts, key=lambda h: (-counts[h], h))
        chosen.add(taken)
        left = {n for n in left if taken not in n}
    return frozenset(chosen)


def _apart(needs: set[frozenset[int]]) -> int:
    """How many needs have no holder in common with each other, at least: a lower bound."""
    used: set[int] = set()
    count = 0
    for n in sorted(needs, key=lambda n: (len(n), sorted(n))):
        if not n & used:
            used |= n
            count += 1
    return count
