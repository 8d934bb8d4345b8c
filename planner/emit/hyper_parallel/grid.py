"""The mesh as HyperParallel has it, and layouts as placements: one word per mesh axis.

`shard(D)`, `replicate`, `partial` are the words of its `plan_overrides` (trainer/config/parallelism.py: PlanOverride);
in Python they are Shard(D), Replicate(), Partial().
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from planner.ir import DeviceMesh, Layout

__all__ = ["Grid", "grid_of"]


@dataclass(frozen=True, slots=True)
class Grid:
    """`axes`: name → the axes of the plan's mesh that it stands for, outermost first; `sizes` likewise."""

    axes: Mapping[str, tuple[str, ...]]
    sizes: Mapping[str, int]

    def placements(self, layout: Layout) -> tuple[str, ...]:
        """Outermost axis first.

        Raises:
            ValueError: axes that split one dimension in another order than the mesh has them, or the parts of an axis
                that do not split one dimension together.
        """
        own = [a for parts in self.axes.values() for a in parts]
        for dim in layout.dims:
            real = [a for a in dim if a in own]
            if real != sorted(real, key=own.index):
                raise ValueError(f"{layout} cuts a dimension by {'.'.join(real)}, in another order than the mesh has")
        where = {a: f"shard({d})" for d, dim in enumerate(layout.dims) for a in dim} | {
            a: "partial" for a, _ in layout.partial
        }
        if any(op != "sum" for _, op in layout.partial):
            raise ValueError(f"{layout} is a pending reduction that is no sum")
        out = []
        for parts in self.axes.values():
            words = {where.get(a, "replicate") for a in parts}
            if len(words) > 1:
                raise ValueError(f"{layout} splits axes {'.'.join(parts)} differently")
            out.append(next(iter(words)))
        return tuple(out)

    def tensor_map(self, layout: Layout) -> tuple[int | tuple[int, ...], ...]:
        """For every dimension the axis that splits it, counted from the right, -1 for none; several as a tuple.

        Raises:
            ValueError: as for placements.
        """
        names = list(self.axes)
        found: list[list[int]] = [[] for _ in layout.dims]
        for i, word in enumerate(self.placements(layout)):
            if word.startswith("shard"):
                found[int(word[6:-1])].append(len(names) - 1 - i)
        return tuple(-1 if not f else f[0] if len(f) == 1 else tuple(f) for f in found)


def grid_of(mesh: DeviceMesh, layouts: Iterable[Layout], names: Mapping[str, str]) -> Grid:
    """The mesh with neighbouring axes joined that always split together, since early versions of HyperParallel know one
    axis per dimension.  `names`: axis → what it is called; joined axes that differ in it go by their own."""
    split_axes = [a.name for a in mesh.axes if a.size > 1] or [mesh.names[0]]
    joined = set(pairwise(split_axes))
    for layout in layouts:
        places = {a: (d, dim) for d, dim in enumerate(layout.dims) for a in dim}
        partial = {a for a, _ in layout.partial}
        for a, b in tuple(joined):
            (da, dims), (db, _) = (places.get(n, (-1, ())) for n in (a, b))
            together = da == db and (da < 0 or (a, b) in pairwise(x for x in dims if x in split_axes))
            if not together or (a in partial) != (b in partial):
                joined.discard((a, b))
    runs: list[list[str]] = []
    for a in split_axes:
        if runs and (runs[-1][-1], a) in joined and names.get(runs[-1][-1]) == names.get(a):
            runs[-1].append(a)
        else:
            runs.append([a])
    labels = [names.get(run[0], "_".join(run)) for run in runs]
    if len(set(labels)) != len(labels):
        labels = ["_".join(run) for run in runs]
    return Grid(
        {n: tuple(run) for n, run in zip(labels, runs, strict=True)},
        {n: math.prod(mesh.sizes[a] for a in run) for n, run in zip(labels, runs, strict=True)},
    )
