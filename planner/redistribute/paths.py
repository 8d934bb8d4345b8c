"""Shortest paths between layouts.

The layouts of a tensor are the vertices, single steps the arcs, their prices the lengths.  All-pairs
distances are found once per (shape, bytes) by min-plus relaxation, so the prices obey the triangle
inequality, the path from a layout to itself is empty, and no path is dearer than gather-then-slice.
Among equally dear paths the one with fewer steps is taken.  Where operators are pinned, few layouts are asked
for, and the distances from and to these alone are found.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.redistribute.lattice import Arcs, Grouped, lattice_of, ranks_of
from planner.redistribute.steps import FREE, Parts, RedistributionStep, StepKind

__all__ = ["Prices", "Redistributions"]

IntArray = NDArray[np.int64]
# One unit of length per step breaks ties; paths have fewer than this many steps.
_STEP_UNIT = 64
_UNREACHABLE = 1 << 61
_DEAREST = 1 << 54  # of one step: what a profile of absurd prices asks for must not overflow
_MANY = 1_000  # layouts, from which on all distances at once take longer than each by itself, and much memory
_FEW = 16  # of so many layouts one may be asked for by itself; beyond that, all distances at once take less time


Copied = Callable[[NDArray[np.float64]], IntArray]
_Case = tuple[tuple[int, ...], int, Reduction, Parts, Copied | None, float]


class Prices(Protocol):
    """What collectives cost, in integer picoseconds."""

    def collective(
        self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64], share: NDArray[np.float64]
    ) -> IntArray: ...


class Redistributions:
    """All redistributions of tensors of one shape and size on one mesh, at fixed prices.

    `copied` prices writing or reading so many bytes, for a tensor that lies inside a kernel: whatever communicates
    takes it out and brings it back, which is a write in the source layout and a read in the target layout.  `share`: it
    is this fraction of what its collectives exchange at once.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        tensor_bytes: int,
        mesh: DeviceMesh,
        prices: Prices,
        reduction: Reduction = Reduction.SUM,
        parts: Parts = (),
        copied: Copied | None = None,
        share: float = 1.0,
    ) -> None:
        self._begin(shape, tensor_bytes, mesh, reduction, parts, copied, share)
        _price([self], mesh, prices)

    @classmethod
    def of_all(cls, cases: Sequence[_Case], mesh: DeviceMesh, prices: Prices) -> list[Redistributions]:
        """One for each (shape, bytes, reduction, parts, copied, share); collectives of one kind over the same axes are
        priced in one call."""
        tables = [cls.__new__(cls) for _ in cases]
        for table, (shape, tensor_bytes, reduction, parts, copied, share) in zip(tables, cases, strict=True):
            table._begin(shape, tensor_bytes, mesh, reduction, parts, copied, share)
        _price(tables, mesh, prices)
        return tables

    def _begin(
        self,
        shape: tuple[int, ...],
        tensor_bytes: int,
        mesh: DeviceMesh,
        reduction: Reduction,
        parts: Parts,
        copied: Copied | None,
        share: float,
    ) -> None:
        self.shape = shape
        self.bytes = tensor_bytes
        self.share = share
        self.mesh = mesh
        self.lattice = lattice_of(shape, mesh, reduction, parts)
        self.layouts = self.lattice.layouts
        self.index = self.lattice.index
        self._copied = np.zeros(len(self.layouts), dtype=np.int64)
        if copied is not None:
            self._copied = copied(tensor_bytes / np.array([x.shards(mesh) for x in self.layouts]))
        self._arcs = self.lattice.joined(tuple(a.size for a in mesh.axes if a.size > 1))
        self._long = np.empty(len(self._arcs.u), dtype=np.int64)  # every arc
        self._from: dict[int, IntArray] = {}
        self._to: dict[int, IntArray] = {}
        self._costs: IntArray | None = None

    @cached_property
    def _distances(self) -> IntArray:
        """All-pairs shortest lengths (Floyd–Warshall, one vectorised pass per vertex)."""
        n = len(self.layouts)
        if n > _MANY:
            return np.stack([self._outward(a) for a in range(n)])
        d = np.full((n, n), _UNREACHABLE, dtype=np.int64)
        np.fill_diagonal(d, 0)
        d[self._arcs.u, self._arcs.v] = self._long
        through = np.empty_like(d)
        for k in range(len(d)):
            np.add(d[:, k, None], d[None, k, :], out=through)
            np.minimum(d, through, out=d)
        return d

    @property
    def costs(self) -> IntArray:
        """`costs[a, b]`: picoseconds from layout a to layout b; 1 << 55 or more where there is no way."""
        if self._costs is None:
            self._costs = self._paid(self._distances, self._copied[:, None] + self._copied)
        return self._costs

    def costs_from(self, sources: NDArray[np.intp]) -> IntArray:
        """`costs[sources]`."""
        if self._all_of(sources, self._from):
            return self.costs[sources]
        lengths = np.stack([self._outward(int(a)) for a in sources])
        return self._paid(lengths, self._copied[sources][:, None] + self._copied)

    def costs_to(self, targets: NDArray[np.intp]) -> IntArray:
        """`costs[:, targets]`."""
        if self._all_of(targets, self._to):
            return self.costs[:, targets]
        lengths = np.stack([self._inward(int(b)) for b in targets], axis=1)
        return self._paid(lengths, self._copied[:, None] + self._copied[targets])

    def costs_between(self, sources: NDArray[np.intp], targets: NDArray[np.intp]) -> IntArray:
        """`costs[np.ix_(sources, targets)]`."""
        if len(set(sources.tolist())) <= len(set(targets.tolist())):
            return self.costs_from(sources)[:, targets]
        return self.costs_to(targets)[sources]

    def _all_of(self, requested: NDArray[np.intp], known: dict[int, IntArray]) -> bool:
        """Whether the distances between all layouts are known, or are found as fast as those that are asked for."""
        if self._costs is not None or not len(requested):
            return True
        new = len(set(requested.tolist()) - known.keys())
        n = len(self.layouts)
        return n <= _MANY and (len(self._from) + len(self._to) + new) * _FEW > n

    def _paid(self, lengths: IntArray, copied: IntArray) -> IntArray:
        costs = lengths // _STEP_UNIT
        return np.where(costs > 0, costs + copied, costs)

    def _outward(self, source: int) -> IntArray:
        """Shortest lengths from a layout to all."""
        if source not in self._from:
            self._from[source] = _shortest(len(self.layouts), source, self._long, self._arcs.out)
        return self._from[source]

    def _inward(self, target: int) -> IntArray:
        """Shortest lengths from all layouts to one."""
        if "_distances" in self.__dict__:
            return self._distances[:, target]
        if target not in self._to:
            self._to[target] = _shortest(len(self.layouts), target, self._long, self._arcs.back)
        return self._to[target]

    def cost(self, source: Layout, target: Layout) -> int:
        a, b = (np.array([self.index[x]]) for x in (source, target))
        return int(self.costs_between(a, b)[0, 0])

    def out_and_back(self, source: Layout, target: Layout) -> int:
        """What a redistribution that communicates costs beside its steps: of tensors inside kernels."""
        return int(self._copied[self.index[source]] + self._copied[self.index[target]])

    def path(self, source: Layout, target: Layout) -> tuple[RedistributionStep, ...]:
        """The cheapest steps; empty when the layouts are equal."""
        here, goal = self.index[source], self.index[target]
        steps: list[RedistributionStep] = []
        inward = self._inward(goal)
        while here != goal:
            leaving = self._arcs.leaving(here)
            there = int(self._arcs.v[leaving[np.argmin(self._long[leaving] + inward[self._arcs.v[leaving]])]])
            steps.append(self.lattice.step(here, there))
            here = there
        return tuple(steps)


def _shortest(count: int, start: int, long: IntArray, arcs: Grouped) -> IntArray:
    """Lengths of the shortest ways from a layout to each of so many, along arcs that are so long (Bellman–Ford)."""
    lengths = np.full(count, _UNREACHABLE, dtype=np.int64)
    lengths[start] = 0
    long = long[arcs.order]
    while True:
        shorter = lengths.copy()
        if len(long):
            reached = np.minimum.reduceat(lengths[arcs.begin] + long, arcs.first)
            shorter[arcs.end] = np.minimum(lengths[arcs.end], reached)
        if np.array_equal(shorter, lengths):
            return lengths
        lengths = shorter


def _price(tables: Sequence[Redistributions], mesh: DeviceMesh, prices: Prices) -> None:
    """Fills in the lengths of the arcs."""
    sizes = tuple(a.size for a in mesh.axes if a.size > 1)
    ranks = ranks_of(sizes)
    batches: dict[tuple[StepKind, tuple[str, ...]], list[tuple[Redistributions, slice, Arcs]]] = defaultdict(list)
    for table in tables:
        at = 0
        for arcs in table.lattice.arcs(sizes):
            batches[arcs.kind, arcs.axes].append((table, slice(at, at + len(arcs.u)), arcs))
            at += len(arcs.u)
    for (kind, axes), batch in batches.items():
        if kind in FREE:
            for table, place, _ in batch:
                table._long[place] = 1
            continue
        # Of each tensor there are as many sizes as sets of axes that may split it, whatever the number of its arcs.
        group_bytes = np.concatenate([table.bytes / ranks for table, _, _ in batch])
        share = np.repeat([table.share for table, _, _ in batch], len(ranks))
        lengths = np.minimum(prices.collective(str(kind), axes, group_bytes, share), _DEAREST) * _STEP_UNIT + 1
        for (table, place, arcs), by_axes in zip(batch, lengths.reshape(len(batch), len(ranks)), strict=True):
            table._long[place] = by_axes[arcs.remaining]
