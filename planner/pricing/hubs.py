"""Tensors with several readers.

A redistribution belongs to the tensor, not to each reader: a tensor read in the same layout three times is
converted once, and its gradient contributions are added before they are converted back.  A hub node of the
Problem carries that shared state.  A *read* is a pair (layout, layout of the gradient contribution).

`SetHub` (up to three readers): the state is the set of at most two reads that the tensor is held in.  The way
from the producer to the set is the cheapest tree (through a meeting layout M where that helps):

    forward   min_M  d(P, M) + d(M, C1) + d(M, C2)
    gradient  min_M  d(G1, M) + d(G2, M) + d(M, D)

`StarHub` (more readers): the tensor is held in one layout M, its gradient gathered in one layout D'; each
reader converts from and to these by itself.  Exact where all readers agree, an upper bound otherwise, and
the program does precisely what is priced.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.ir import Layout
from planner.pricing.assignment import Redistribution, Style
from planner.pricing.machine import IntArray
from planner.redistribute import Redistributions
from planner.search.problem import FORBIDDEN

__all__ = ["MAX_SET_READERS", "Read", "SetHub", "StarHub", "capped", "direct_costs", "direct_moves", "distances"]

MAX_SET_READERS = 3
MAX_SET_STATES = 1500

Read = tuple[Layout, Layout | None]


def capped(costs: IntArray) -> IntArray:
    """Costs of FORBIDDEN at most, so that sums do not overflow."""
    return np.minimum(costs, FORBIDDEN)


def _lookup(table: Redistributions, layouts: Sequence[Layout | None]) -> np.ndarray:
    """Indices into the table; -1 for no layout, -2 for one the table cannot reach."""
    return np.array([-1 if x is None else table.index.get(x, -2) for x in layouts], dtype=np.intp)


def distances(table: Redistributions, sources: np.ndarray, targets: np.ndarray) -> IntArray:
    """d[i, j] from sources[i] to targets[j]; 0 where either is absent (-1), forbidden where unreachable (-2)."""
    d = capped(table.costs_between(np.maximum(sources, 0), np.maximum(targets, 0)))
    d[(sources == -1)[:, None] | (targets == -1)[None, :]] = 0
    d[(sources == -2)[:, None] | (targets == -2)[None, :]] = FORBIDDEN
    return d


def direct_costs(table: Redistributions, writes: Sequence[Read], reads: Sequence[Read], times: int = 1) -> IntArray:
    """Cost [write, read] of handing a tensor `times` to its only reader, and its gradient back."""
    forward, back = direct_distances(table, writes, reads)
    return capped(times * forward + back)


def direct_distances(
    table: Redistributions, writes: Sequence[Read], reads: Sequence[Read]
) -> tuple[IntArray, IntArray]:
    """Cost [write, read] of handing a tensor over once, and of handing its gradient back."""
    forward = distances(table, _lookup(table, [w[0] for w in writes]), _lookup(table, [r[0] for r in reads]))
    back = distances(table, _lookup(table, [r[1] for r in reads]), _lookup(table, [w[1] for w in writes]))
    return forward, back.T


def direct_moves(write: Read, read: Read) -> list[Redistribution]:
    """Moves from the producer to the reader, and of the gradient back."""
    moves = [Redistribution(False, write[0], read[0])] if write[0] != read[0] else []
    if write[1] is not None and read[1] is not None and write[1] != read[1]:
        moves.append(Redistribution(True, read[1], write[1]))
    return moves


@dataclass(frozen=True, eq=False)
class SetHub:
    """States are sets of one or two reads out of `reads`."""

    table: Redistributions
    reads: tuple[Read, ...]
    style: Style = "set"

    @cached_property
    def states(self) -> tuple[tuple[int, int], ...]:
        """Pairs of indices into `reads`; a set of one repeats its index."""
        n = len(self.reads)
        singles = [(i, i) for i in range(n)]
        if n * (n + 1) // 2 <= MAX_SET_STATES:
            return tuple(singles + list(itertools.combinations(range(n), 2)))
        return tuple(singles + self._close_pairs(max(0, MAX_SET_STATES - n)))

    def _close_pairs(self, most: int) -> list[tuple[int, int]]:
        """The first pairs of reads that differ on one mesh axis at most."""
        names = self.table.mesh.names
        roles = np.array([[[_role(x, a) for x in read] for a in names] for read in self.reads])  # [read, axis, side]
        pairs: list[tuple[int, int]] = []
        for i in range(len(roles)):
            if len(pairs) >= most:
                break
            axes = (roles[i + 1 :] != roles[i]).any(axis=2).sum(axis=1)
            pairs += [(i, j) for j in (np.flatnonzero(axes <= 1) + i + 1).tolist()]
        return pairs[:most]

    def producer_costs(self, writes: Sequence[Read], times: int = 1) -> IntArray:
        """Cost [write, state] of the cheapest trees, forward (as many `times`) and back."""
        forward, backward = self.producer_trees(writes)
        return capped(times * forward + backward)

    def producer_trees(self, writes: Sequence[Read]) -> tuple[IntArray, IntArray]:
        """Cost [write, state] of the cheapest trees, forward and back."""
        ways = _Ways(self.table)
        first, second = self._members.T
        c = _lookup(self.table, [r[0] for r in self.reads])
        g = _lookup(self.table, [r[1] for r in self.reads])
        p = _lookup(self.table, [w[0] for w in writes])
        wanted = _lookup(self.table, [w[1] for w in writes])
        forward = _tree(ways, p, c[first], c[second])
        # Backward trees run against the arrows: from the contributions to the wanted layout.
        backward = _tree(ways.against, wanted, g[first], g[second])
        return forward, backward

    def reader_costs(self, combinations: Sequence[tuple[Read, ...]], times: int = 1) -> IntArray:
        """[combination, state]: 0 where every read of the combination is in the set, else forbidden.

        A read that gives no gradient back is served by whatever holds the tensor in its layout.
        """
        first, second = self._members.T
        out = np.zeros((len(combinations), len(self.states)), dtype=np.int64)
        for row, combination in enumerate(combinations):
            for read in combination:
                serves = self._serving(read)
                out[row, ~(serves[first] | serves[second])] = FORBIDDEN
        return out

    def held(self, state: int) -> tuple[Layout, ...]:
        """Distinct layouts the tensor is held in."""
        i, j = self.states[state]
        return tuple(dict.fromkeys((self.reads[i][0], self.reads[j][0])))

    @property
    def held_in(self) -> tuple[tuple[Layout, ...], IntArray]:
        """Layouts, and [state, 2] indices of the one or two that the tensor is held in (-1: only one)."""
        layouts, of = self._layouts
        first, second = of[self._members].T
        return layouts, np.stack([first, np.where(first == second, -1, second)], axis=1)

    @cached_property
    def _members(self) -> np.ndarray:
        return np.array(self.states, dtype=np.intp).reshape(-1, 2)

    @cached_property
    def _layouts(self) -> tuple[tuple[Layout, ...], np.ndarray]:
        """The distinct layouts of `reads`, and the index of each read's."""
        position: dict[Layout, int] = {}
        of = np.array([position.setdefault(r[0], len(position)) for r in self.reads], dtype=np.intp)
        return tuple(position), of

    @cached_property
    def _position(self) -> dict[Read, int]:
        return {r: i for i, r in enumerate(self.reads)}

    def _serving(self, read: Read) -> np.ndarray:
        """Which of `reads` serve this one."""
        if read[1] is None:
            layouts, of = self._layouts
            return np.asarray(of == (layouts.index(read[0]) if read[0] in layouts else -1))
        return np.arange(len(self.reads)) == self._position.get(read, -1)

    def moves(self, write: Read, state: int, used: Sequence[Read]) -> list[Redistribution]:
        """The shared moves from the producer to the reads of the set that are `used`, and of the gradients back."""
        ways = _Ways(self.table)
        held = [self.reads[k] for k in dict.fromkeys(self.states[state])]
        wanted = {read[0] for read in used}
        copies = tuple(dict.fromkeys(r[0] for r in held if r[0] in wanted))
        moves = _tree_moves(ways, write[0], copies)
        contributions = tuple(dict.fromkeys(r[1] for r in held if r in used and r[1] is not None))
        if write[1] is not None and contributions:
            moves += _tree_moves(ways.against, write[1], contributions)
        return moves


def _role(layout: Layout | None, axis: str) -> int:
    """What the axis does: -3 no layout, -2 pending, -1 replicas, else the dimension it splits."""
    if layout is None:
        return -3
    if axis in layout.partial_axes:
        return -2
    return next((i for i, dim in enumerate(layout.dims) if axis in dim), -1)


@dataclass(frozen=True, slots=True)
class _Ways:
    """Costs between layouts of a table; `reverse`: against the arrows."""

    table: Redistributions
    reverse: bool = False

    @property
    def against(self) -> _Ways:
        return _Ways(self.table, not self.reverse)

    def out_of(self, layouts: np.ndarray) -> IntArray:
        """[layout, any]: from each of these."""
        return capped(self.table.costs_to(layouts).T if self.reverse else self.table.costs_from(layouts))

    def into(self, layouts: np.ndarray) -> IntArray:
        """[any, layout]: to each of these."""
        return capped(self.table.costs_from(layouts).T if self.reverse else self.table.costs_to(layouts))


def _tree(ways: _Ways, roots: np.ndarray, first: np.ndarray, second: np.ndarray) -> IntArray:
    """min_M d[root, M] + d[M, first] + d[M, second], for all roots and all pairs of leaves; -1 means absent."""
    leaves = np.stack([np.where(first < 0, second, first), np.where(second < 0, first, second)])
    pairs, inverse = np.unique(leaves, axis=1, return_inverse=True)
    a, b = pairs
    distinct_roots, root_inverse = np.unique(roots, return_inverse=True)
    out = np.empty((len(distinct_roots), pairs.shape[1]), dtype=np.int64)
    both = a != b
    to_first = ways.into(np.maximum(a, 0))
    from_meeting = to_first + np.where(both, ways.into(np.maximum(b, 0)), 0)
    from_root = ways.out_of(np.maximum(distinct_roots, 0))
    for row, root in enumerate(distinct_roots):
        if root == -2:
            out[row] = FORBIDDEN
        elif root == -1:
            out[row] = 0
        else:
            out[row] = np.where(both, np.min(from_root[row][:, None] + from_meeting, axis=0), to_first[root])
    out[:, (a == -2) | (b == -2)] = FORBIDDEN
    out[:, (a == -1) & (b == -1)] = 0
    return out[root_inverse.ravel()][:, inverse.ravel()]


def _tree_moves(ways: _Ways, root: Layout, leaves: tuple[Layout, ...]) -> list[Redistribution]:
    """The moves of the cheapest tree between `root` and one or two `leaves`, in the order they are made.

    A leaf that is the root needs none: ways that lead away and back are never cheaper, at best free.
    """
    meeting = leaves[0]
    if root in leaves:
        meeting = root
    elif len(leaves) == 2:
        table = ways.table
        at = np.array([table.index[x] for x in (root, *leaves)])
        meeting = table.layouts[int(np.argmin(ways.out_of(at[:1])[0] + ways.into(at[1:]).sum(axis=1)))]
    pairs = [(root, meeting), *((meeting, leaf) for leaf in leaves)]
    if ways.reverse:  # contributions first, the wanted layout last
        pairs = [(b, a) for a, b in (*pairs[1:], pairs[0])]
    return [Redistribution(ways.reverse, source, target) for source, target in pairs if source != target]


@dataclass(frozen=True, eq=False)
class StarHub:
    """States are single (layout, gradient layout) pairs; readers convert by themselves."""

    table: Redistributions
    states: tuple[Read, ...]
    style: Style = "star"

    @classmethod
    def of(cls, table: Redistributions, reads: Sequence[Read]) -> StarHub:
        """Every way some reader reads, pending sums of the value itself left out."""
        active = any(r[1] is not None for r in reads)
        states = [r for r in reads if not r[0].partial and (r[1] is not None or not active)]
        whole = Layout.replicated(len(table.shape))
        states.append((whole, whole if active else None))
        return cls(table, tuple(dict.fromkeys(states)))

    def producer_costs(self, writes: Sequence[Read], times: int = 1) -> IntArray:
        return direct_costs(self.table, writes, self.states, times)

    def producer_trees(self, writes: Sequence[Read]) -> tuple[IntArray, IntArray]:
        """Cost [write, state] of getting there, forward and back."""
        return direct_distances(self.table, writes, self.states)

    def reader_costs(self, combinations: Sequence[tuple[Read, ...]], times: int = 1) -> IntArray:
        """Cost [combination, state] of the reader's own conversions; one that serves two operands counts once."""
        out = np.zeros((len(combinations), len(self.states)), dtype=np.int64)
        for side in (0, 1):
            layouts = _lookup(self.table, [s[side] for s in self.states])
            for row, combination in enumerate(combinations):
                own = _lookup(self.table, list(dict.fromkeys(read[side] for read in combination)))
                d = distances(self.table, layouts, own) if side == 0 else distances(self.table, own, layouts).T
                out[row] += (times if side == 0 else 1) * d.sum(axis=1)
        return capped(out)

    def held(self, state: int) -> tuple[Layout, ...]:
        return (self.states[state][0],)

    @property
    def held_in(self) -> tuple[tuple[Layout, ...], IntArray]:
        """Layouts, and [state, 2] indices of the one that the tensor is held in (and -1)."""
        n = len(self.states)
        return tuple(s[0] for s in self.states), np.stack([np.arange(n), np.full(n, -1)], axis=1)

    def moves(self, write: Read, state: int, used: Sequence[Read]) -> list[Redistribution]:
        """The shared moves from the producer to where the tensor is held, and of the gathered gradient back."""
        return direct_moves(write, self.states[state])
