"""Shortest paths between layouts.

The layouts of a tensor are the vertices, single steps the arcs, their prices the lengths.  All-pairs
distances are found once per (shape, bytes) by min-plus relaxation, so the prices obey the triangle
inequality, the path from a layout to itself is empty, and no path is dearer than gather-then-slice.
Among equally dear paths the one with fewer steps is taken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.redistribute.lattice import Arcs, lattice_of, ranks_of
from planner.redistribute.steps import FREE, Parts, Step, StepKind

__all__ = ["Prices", "Redistributions"]

IntArray = NDArray[np.int64]
# One unit of length per step breaks ties; paths have fewer than this many steps.
_STEP_UNIT = 64
_UNREACHABLE = 1 << 61
_DEAREST = 1 << 54  # of one step: what a profile of absurd prices asks for must not overflow


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
        n = len(self.layouts)
        self._copied = np.zeros(n, dtype=np.int64)
        if copied is not None:
            self._copied = copied(tensor_bytes / np.array([x.shards(mesh) for x in self.layouts]))
        self._lengths = np.full((n, n), _UNREACHABLE, dtype=np.int64)
        np.fill_diagonal(self._lengths, 0)

    @cached_property
    def _distances(self) -> IntArray:
        """All-pairs shortest lengths (Floyd–Warshall, one vectorised pass per vertex)."""
        d = self._lengths.copy()
        for k in range(len(d)):
            np.minimum(d, d[:, k, None] + d[None, k, :], out=d)
        return d

    @cached_property
    def costs(self) -> IntArray:
        """`costs[a, b]`: picoseconds from layout a to layout b; 1 << 55 or more where there is no way."""
        costs = self._distances // _STEP_UNIT
        return np.where(costs > 0, costs + self._copied[:, None] + self._copied, costs)

    def cost(self, source: Layout, target: Layout) -> int:
        return int(self.costs[self.index[source], self.index[target]])

    def out_and_back(self, source: Layout, target: Layout) -> int:
        """What a redistribution that communicates costs beside its steps: of tensors inside kernels."""
        return int(self._copied[self.index[source]] + self._copied[self.index[target]])

    def path(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The cheapest steps; empty when the layouts are equal."""
        here, goal = self.index[source], self.index[target]
        steps: list[Step] = []
        while here != goal:
            through = self._lengths[here] + self._distances[:, goal]
            through[here] = _UNREACHABLE * 2
            there = int(np.argmin(through))
            steps.append(self.lattice.step(here, there))
            here = there
        return tuple(steps)


def _price(tables: Sequence[Redistributions], mesh: DeviceMesh, prices: Prices) -> None:
    """Fills in the lengths of the arcs."""
    sizes = tuple(a.size for a in mesh.axes if a.size > 1)
    ranks = ranks_of(sizes)
    batches: dict[tuple[StepKind, tuple[str, ...]], list[tuple[Redistributions, Arcs]]] = defaultdict(list)
    for table in tables:
        for arcs in table.lattice.arcs(sizes):
            batches[arcs.kind, arcs.axes].append((table, arcs))
    for (kind, axes), batch in batches.items():
        if kind in FREE:
            for table, arcs in batch:
                table._lengths[arcs.u, arcs.v] = 1
            continue
        group_bytes = np.concatenate([table.bytes / ranks[arcs.kept] for table, arcs in batch])
        share = np.concatenate([np.full(len(arcs.u), table.share) for table, arcs in batch])
        lengths = np.minimum(prices.collective(str(kind), axes, group_bytes, share), _DEAREST) * _STEP_UNIT + 1
        end = np.cumsum([len(arcs.u) for _, arcs in batch])[:-1]
        for (table, arcs), own in zip(batch, np.split(lengths, end), strict=True):
            table._lengths[arcs.u, arcs.v] = own
