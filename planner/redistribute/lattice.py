"""The layouts of a tensor and the steps between them, whatever its size and the sizes of the mesh axes.

Both depend on no more than which sets of axes divide each dimension, and each of its equal parts (the *pattern*), and,
for permutes, on the sizes of the axes.  Tensors and meshes of one pattern share a `Lattice`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.redistribute.steps import Parts, RedistributionStep, StepKind, even_layouts, single_steps

__all__ = ["Arcs", "Grouped", "Joined", "Lattice", "lattice_of"]

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Arcs:
    """Steps of one kind over the same axes, from layouts `u` to layouts `v` (indices).

    `remaining[i]`: the axes that split what the group of step i works on, as a bit set over the names of the lattice:
    the group's bytes are the tensor's divided by their ranks (see `RedistributionStep.group_bytes`).
    """

    kind: StepKind
    axes: tuple[str, ...]
    u: IntArray
    v: IntArray
    remaining: IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """Arcs in the `order` of where they end: `begin` of each; those that end at `end[i]` begin at place `first[i]`."""

    order: IntArray
    begin: IntArray
    end: IntArray
    first: IntArray

    @classmethod
    def by(cls, begin: IntArray, end: IntArray) -> Grouped:
        order = np.lexsort((begin, end))
        ends, first = np.unique(end[order], return_index=True)
        return cls(order, begin[order], ends, first)


@dataclass(frozen=True, slots=True, eq=False)
class Joined:
    """All arcs of a mesh, one kind after the other, from `u` to `v`; grouped by `v` to go along them (`out`), and by
    `u` to go `back`."""

    u: IntArray
    v: IntArray
    out: Grouped
    back: Grouped

    def leaving(self, layout: int) -> IntArray:
        """The arcs from a layout, by where they lead."""
        at = int(np.searchsorted(self.back.end, layout))
        first = self.back.first[at]
        last = self.back.first[at + 1] if at + 1 < len(self.back.first) else len(self.u)
        return self.back.order[first:last]


_MOST_COMMON: Final = 1_000  # places of axes, up to which patterns are found within one that many have in common

# By dimension: number of parts → bit s is set where each of them divides evenly over the axes of the bit set s.
_Pattern = tuple[tuple[tuple[int, int], ...], ...]


class Lattice:
    """`pattern`: which axes (bit sets over `names`) divide each dimension, as one and in parts.

    `within`: a lattice over the same names whose dimensions divide by all axes that these divide by, in the same parts:
    layouts, and steps between two of them, are those of it that fit.
    """

    def __init__(
        self, names: tuple[str, ...], pattern: _Pattern, reduction: Reduction, within: Lattice | None = None
    ) -> None:
        self.names, self.pattern = names, pattern
        self._on: dict[tuple[int, ...], tuple[Arcs, ...]] = {}
        self._joined: dict[tuple[int, ...], Joined] = {}
        if within is None:
            self._find(pattern, reduction)
        else:
            self._take(within, pattern)

    def _find(self, pattern: _Pattern, reduction: Reduction) -> None:
        names = self.names
        bit = {name: 1 << i for i, name in enumerate(names)}
        divides = [dict(ways) for ways in pattern]
        parts: Parts = tuple(tuple(n for n in ways if n > 1) for ways in divides)

        def fits(d: int, axes: tuple[str, ...], parts: int) -> bool:
            return bool(divides[d][parts] >> sum(bit[a] for a in axes) & 1)

        self.layouts = tuple(even_layouts(names, len(pattern), fits, reduction, parts))
        self.index = {layout: i for i, layout in enumerate(self.layouts)}
        shape = len(self.layouts), len(pattern)
        # [layout, dimension]: bit sets of the axes that split it; [layout]: of those that are pending
        self._split = np.array([[sum(bit[a] for a in d) for d in x.dims] for x in self.layouts], np.int64).reshape(
            shape
        )
        self._pending = np.array([sum(bit[a] for a in x.partial_axes) for x in self.layouts], dtype=np.int64)
        self._steps: dict[tuple[int, int], RedistributionStep] = {}
        batches: dict[tuple[StepKind, tuple[str, ...]], list[tuple[int, int]]] = defaultdict(list)
        for u, layout in enumerate(self.layouts):
            for step in single_steps(layout, names, fits, reduction, parts):
                v = self.index[step.target]
                self._steps[u, v] = step
                batches[step.kind, step.axes].append((u, v))
        whole = self._split.sum(axis=1)
        self._arcs = tuple(
            _arcs(k, axes, pairs, whole & ~sum(bit[a] for a in axes)) for (k, axes), pairs in batches.items()
        )
        self._numbers = np.arange(len(self.layouts))

    def _take(self, whole: Lattice, pattern: _Pattern) -> None:
        fit = np.ones(len(whole.layouts), dtype=bool)
        for d, ways in enumerate(pattern):
            split = whole._split[:, d]
            for count, divides in ways:
                fit &= (whole._counts[:, d] != count) | (divides >> split & 1).astype(bool)
        kept = np.flatnonzero(fit)
        self.layouts = tuple(whole.layouts[i] for i in kept.tolist())
        self.index = {layout: i for i, layout in enumerate(self.layouts)}
        self._split, self._pending = whole._split[kept], whole._pending[kept]
        self._steps, self._numbers = whole._steps, kept
        place = np.full(len(whole.layouts), -1)
        place[kept] = np.arange(len(kept))
        arcs = ((x, np.flatnonzero(fit[x.u] & fit[x.v])) for x in whole._arcs)
        self._arcs = tuple(
            Arcs(x.kind, x.axes, place[x.u[k]], place[x.v[k]], x.remaining[k]) for x, k in arcs if len(k)
        )

    @cached_property
    def _counts(self) -> IntArray:
        """[layout, dimension]: the number of equal parts that are split each by itself."""
        counts = [[x.parts_of(d) for d in range(len(x.dims))] for x in self.layouts]
        return np.array(counts, dtype=np.int64).reshape(self._split.shape)

    def arcs(self, sizes: tuple[int, ...]) -> tuple[Arcs, ...]:
        """All steps, permutes included, on a mesh whose axes have these sizes; no two join the same two layouts."""
        if sizes not in self._on:
            self._on[sizes] = (*self._arcs, *self._permutes(sizes))
        return self._on[sizes]

    def joined(self, sizes: tuple[int, ...]) -> Joined:
        """All of them together."""
        if sizes not in self._joined:
            arcs = self.arcs(sizes)
            none = np.zeros(0, np.int64)
            u, v = (np.concatenate([none, *ends]) for ends in ([x.u for x in arcs], [x.v for x in arcs]))
            self._joined[sizes] = Joined(u, v, Grouped.by(u, v), Grouped.by(v, u))
        return self._joined[sizes]

    def step(self, u: int, v: int) -> RedistributionStep:
        """The step between two layouts that an arc joins."""
        found = self._steps.get((int(self._numbers[u]), int(self._numbers[v])))
        if found is None:
            a, b = self.layouts[u], self.layouts[v]
            found = RedistributionStep(
                StepKind.PERMUTE, self._named(self._moved(np.array([u]), np.array([v]))[0]), a, b
            )
        return found

    @cached_property
    def ordered(self) -> tuple[Layout, ...]:
        """The layouts with nothing pending and the axes of every dimension in mesh order."""
        place = {name: i for i, name in enumerate(self.names)}
        return tuple(
            x
            for x in self.layouts
            if not x.partial and all(list(d) == sorted(d, key=place.__getitem__) for d in x.dims)
        )

    def _permutes(self, sizes: tuple[int, ...]) -> list[Arcs]:
        """Between layouts with equal shards of every dimension, in the same parts, and the same axes pending."""
        shards = ranks_of(sizes)[self._split]
        alike: dict[object, list[int]] = defaultdict(list)
        keys = zip(map(tuple, shards.tolist()), self._pending.tolist(), (x.parts for x in self.layouts), strict=True)
        for i, key in enumerate(keys):
            alike[key].append(i)
        pairs = [(u, v) for members in alike.values() if len(members) > 1 for u in members for v in members if u != v]
        if not pairs:
            return []
        u, v = np.array(pairs, dtype=np.int64).T
        moved = self._moved(u, v)
        whole = self._split.sum(axis=1)
        return [
            Arcs(StepKind.PERMUTE, self._named(axes), u[moved == axes], v[moved == axes], whole[u[moved == axes]])
            for axes in np.unique(moved).tolist()
        ]

    def _moved(self, u: IntArray, v: IntArray) -> IntArray:
        """Bit sets of the axes along which permutes move data: those of the dimensions that are split differently."""
        differs = self._order[u] != self._order[v]
        return np.asarray(np.bitwise_or.reduce(np.where(differs, self._split[u] | self._split[v], 0), axis=1))

    @cached_property
    def _order(self) -> IntArray:
        """[layout, dimension]: a number for the axes that split it, in their order."""
        numbers: dict[tuple[str, ...], int] = {}
        rows = [[numbers.setdefault(d, len(numbers)) for d in x.dims] for x in self.layouts]
        return np.array(rows, dtype=np.int64).reshape(self._split.shape)

    def _named(self, axes: int) -> tuple[str, ...]:
        return tuple(name for i, name in enumerate(self.names) if axes >> i & 1)


def lattice_of(shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction, parts: Parts = ()) -> Lattice:
    """The lattice of tensors of this shape, whose dimensions may be split in so many `parts`.

    Axes of one rank are left out.
    """
    names = tuple(a.name for a in mesh.axes if a.size > 1)
    ranks = ranks_of(tuple(a.size for a in mesh.axes if a.size > 1)).tolist()

    def divides(size: int, parts: int) -> int:
        return sum(1 << s for s, n in enumerate(ranks) if size % (n * parts) == 0 and (size or n == 1))

    ways = parts or ((),) * len(shape)
    pattern = tuple(tuple((n, divides(size, n)) for n in (1, *more)) for size, more in zip(shape, ways, strict=True))
    return _lattice(names, pattern, reduction)


@lru_cache(maxsize=256)
def _lattice(names: tuple[str, ...], pattern: _Pattern, reduction: Reduction) -> Lattice:
    common = tuple(tuple((n, _common(bits, len(names))) for n, bits in ways) for ways in pattern)
    divided = sum(any(bits > 1 for _, bits in ways) for ways in pattern)
    if common == pattern or (divided + 2) ** len(names) > _MOST_COMMON:
        return Lattice(names, pattern, reduction)
    return Lattice(names, pattern, reduction, _lattice(names, common, reduction))


def _common(divides: int, axes: int) -> int:
    """All sets of so many axes where any of them divides, else none."""
    return (1 << (1 << axes)) - 1 if divides > 1 else divides


@lru_cache(maxsize=256)
def ranks_of(sizes: tuple[int, ...]) -> IntArray:
    """Ranks of a group over each set of axes, by bit set."""
    ranks = np.ones(1, dtype=np.int64)
    for size in sizes:
        ranks = np.concatenate([ranks, ranks * size])
    return ranks


def _arcs(kind: StepKind, axes: tuple[str, ...], pairs: list[tuple[int, int]], remaining: IntArray) -> Arcs:
    u, v = np.array(pairs, dtype=np.int64).T
    return Arcs(kind, axes, u, v, remaining[u])
