"""Exact min-sum variable elimination (non-serial dynamic programming) over nodes and edges.

Variables are eliminated greedily, the one with the smallest resulting table first (ties: the smaller joint
table, then position), which in a deep network repeats from layer to layer; equal eliminations are computed
once (`planner.search.elimination.tables`).  Costs O(n d^(w+1)) with w the width of the order and d the number of
*classes* of states, usually far below the number of states.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from planner.search.elimination.tables import Elimination, Key, TableStore

__all__ = ["Leaf", "Optimum", "eliminate"]

Leaf = tuple[int, tuple[int, ...]]  # table number, scope


@dataclass(frozen=True, slots=True)
class Optimum:
    """`value` is the least sum (less what the leaves' own minima took away), `order` the elimination order."""

    value: float
    choice: tuple[int, ...]
    order: tuple[int, ...]


def eliminate(store: TableStore, sizes: Sequence[int], leaves: Sequence[Leaf], order: Sequence[int] | None) -> Optimum:
    """The least sum of `leaves` over all choices of `sizes[v]` states each.

    `order` is one to follow, or None to find one.  Raises `Infeasible` when every choice is infinite and
    `TooLarge` when a table would be.
    """
    buckets: list[set[Leaf]] = [set() for _ in sizes]
    copies: dict[Leaf, int] = {}  # the same table may stand twice on the same scope

    def add(leaf: Leaf) -> None:
        leaf = store.squeezed(leaf)
        if not leaf[1]:
            return  # a constant, and tables have least entry zero
        copies[leaf] = copies.get(leaf, 0) + 1
        for v in leaf[1]:
            buckets[v].add(leaf)

    for leaf in leaves:
        add(leaf)
    queue = None if order is not None else _Queue(store, buckets)
    followed: list[int] = []
    steps: list[tuple[int, Elimination, tuple[int, ...]]] = []
    value = 0.0
    choice = [0] * len(sizes)
    sequence: Iterable[int] = order if order is not None else queue or ()
    for v in sequence:
        followed.append(v)
        if not buckets[v]:
            continue
        key, others = _key(v, [leaf for leaf in sorted(buckets[v]) for _ in range(copies[leaf])])
        done = store.eliminate(key)
        value += done.offset
        steps.append((v, done, others))
        for leaf in list(buckets[v]):
            del copies[leaf]
            for u in leaf[1]:
                buckets[u].discard(leaf)
        if done.table is not None:
            add((done.table, others))
        if queue is not None:
            queue.update(others)
    for v, done, others in reversed(steps):
        choice[v] = done.best([choice[u] for u in others])
    return Optimum(value, tuple(choice), tuple(followed))


def _key(v: int, bucket: list[Leaf]) -> tuple[Key, tuple[int, ...]]:
    """The tables with their variables renumbered by first appearance, and the variables but v in that order."""
    local = {v: 0}
    key = tuple((table, tuple(local.setdefault(u, len(local)) for u in scope)) for table, scope in bucket)
    return key, tuple(local)[1:]


class _Queue:
    """Yields the variables in greedy order; `update` re-prices those whose tables changed."""

    def __init__(self, store: TableStore, buckets: list[set[Leaf]]) -> None:
        self.store, self.buckets = store, buckets
        self.price = [self._price(v) for v in range(len(buckets))]
        self.heap = [(*p, v) for v, p in enumerate(self.price)]
        self.left = set(range(len(buckets)))
        heapq.heapify(self.heap)

    def _price(self, v: int) -> tuple[int, int]:
        """(size of the table that eliminating v leaves, size of the joint table)."""
        sides: dict[int, list[int]] = {}
        for table, scope in sorted(self.buckets[v]):
            if len(scope) > 1:
                for m, u in zip(self.store.tables[table].maps, scope, strict=True):
                    found = sides.setdefault(u, [])
                    if m not in found:
                        found.append(m)
        size = 1
        own = 1
        for u, maps in sides.items():
            count = self.store.refined_count(tuple(maps))
            if u == v:
                own = count
            else:
                size *= count
        return size, size * own

    def update(self, variables: Sequence[int]) -> None:
        for v in variables:
            price = self._price(v)
            if price != self.price[v]:
                self.price[v] = price
                heapq.heappush(self.heap, (*price, v))

    def __iter__(self) -> Iterator[int]:
        while self.heap:
            size, joint, v = heapq.heappop(self.heap)
            if v in self.left and (size, joint) == self.price[v]:
                self.left.discard(v)
                yield v
