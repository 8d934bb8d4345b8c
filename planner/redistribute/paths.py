"""Shortest paths between layouts.

The layouts of a tensor are the vertices, single steps the arcs, their prices the lengths.  All-pairs
distances are found once per (shape, bytes) by min-plus relaxation, so the prices obey the triangle
inequality, the path from a layout to itself is empty, and no path is dearer than gather-then-slice.
Among equally dear paths the one with fewer steps is taken.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.ir import DeviceMesh, Layout, Reduction
from planner.redistribute.steps import FREE, Step, StepKind, layouts_of, steps_from

__all__ = ["Prices", "Redistributions"]

IntArray = NDArray[np.int64]
# One unit of length per step breaks ties; paths have fewer than this many steps.
_STEP_UNIT = 64
_UNREACHABLE = 1 << 61
_DEAREST = 1 << 54  # of one step: what a profile of absurd prices asks for must not overflow


class Prices(Protocol):
    """What collectives cost, in integer picoseconds."""

    def collective(self, kind: str, axes: tuple[str, ...], group_bytes: NDArray[np.float64]) -> IntArray: ...


class Redistributions:
    """All redistributions of tensors of one shape and size on one mesh, at fixed prices."""

    def __init__(
        self,
        shape: tuple[int, ...],
        tensor_bytes: int,
        mesh: DeviceMesh,
        prices: Prices,
        reduction: Reduction = Reduction.SUM,
    ) -> None:
        self.shape = shape
        self.bytes = tensor_bytes
        self.mesh = mesh
        self.layouts = layouts_of(shape, mesh, reduction)
        self.index = {layout: i for i, layout in enumerate(self.layouts)}
        self._steps = self._all_steps(reduction)
        self._lengths = self._price(prices)

    def _all_steps(self, reduction: Reduction) -> list[Step]:
        steps = [s for layout in self.layouts for s in steps_from(layout, self.shape, self.mesh, reduction)]
        classes: dict[object, list[Layout]] = defaultdict(list)
        for layout in self.layouts:
            shards = tuple(self.mesh.size(d) for d in layout.dims)
            classes[shards, layout.partial].append(layout)
        for members in classes.values():
            steps += [
                Step(StepKind.PERMUTE, _moved_axes(a, b, self.mesh), a, b) for a in members for b in members if a != b
            ]
        return steps

    def _price(self, prices: Prices) -> IntArray:
        n = len(self.layouts)
        lengths = np.full((n, n), _UNREACHABLE, dtype=np.int64)
        np.fill_diagonal(lengths, 0)
        batches: dict[tuple[StepKind, tuple[str, ...]], list[Step]] = defaultdict(list)
        for s in self._steps:
            batches[s.kind, s.axes].append(s)
        for (kind, axes), batch in batches.items():
            u = np.array([self.index[s.source] for s in batch])
            v = np.array([self.index[s.target] for s in batch])
            if kind in FREE:
                cost = np.zeros(len(batch), dtype=np.int64)
            else:
                cost = prices.collective(
                    str(kind), axes, np.array([s.group_bytes(self.bytes, self.mesh) for s in batch], dtype=np.float64)
                )
            np.minimum.at(lengths, (u, v), np.minimum(cost, _DEAREST) * _STEP_UNIT + 1)
        return lengths

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
        return self._distances // _STEP_UNIT

    def cost(self, source: Layout, target: Layout) -> int:
        return int(self.costs[self.index[source], self.index[target]])

    def path(self, source: Layout, target: Layout) -> tuple[Step, ...]:
        """The cheapest steps; empty when the layouts are equal."""
        here, goal = self.index[source], self.index[target]
        steps: list[Step] = []
        while here != goal:
            through = self._lengths[here] + self._distances[:, goal]
            through[here] = _UNREACHABLE * 2
            there = int(np.argmin(through))
            steps.append(self._step_between[here, there])
            here = there
        return tuple(steps)

    @cached_property
    def _step_between(self) -> dict[tuple[int, int], Step]:
        """The step behind each arc; no two kinds of step join the same pair of layouts."""
        return {(self.index[s.source], self.index[s.target]): s for s in self._steps}


def _moved_axes(a: Layout, b: Layout, mesh: DeviceMesh) -> tuple[str, ...]:
    """Axes along which a permute between the two layouts moves data."""
    moved = {x for da, db in zip(a.dims, b.dims, strict=True) if da != db for x in (*da, *db)}
    return tuple(n for n in mesh.names if n in moved)
