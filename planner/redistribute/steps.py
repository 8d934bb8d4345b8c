"""One step of a redistribution: a collective, or a free local operation.

Layouts are even, so every step is fully described by the layouts before and after it and the axes over
which the ranks talk.  Bytes follow the convention of the cost models: the size of the whole tensor of the
group (all-gather's result; the operand of reduce-scatter and all-reduce; all shards together for
all-to-all); a permute counts one rank's shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from planner.ir import DeviceMesh, Layout, Reduction

__all__ = ["FREE", "Step", "StepKind", "layouts_of", "steps_from"]


class StepKind(StrEnum):
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "permute"
    SLICE = "slice"  # every rank keeps its part of a replica
    TO_PARTIAL = "to_partial"  # the first rank keeps its replica, the others hold zeros


FREE = frozenset({StepKind.SLICE, StepKind.TO_PARTIAL})


@dataclass(frozen=True, slots=True)
class Step:
    """`axes` span the communication groups; `dim` is the dimension gathered, sliced or scattered along and
    `to_dim` the one split afterwards (all-to-all only); -1 where there is none."""

    kind: StepKind
    axes: tuple[str, ...]
    source: Layout
    target: Layout
    dim: int = -1
    to_dim: int = -1

    def group_bytes(self, tensor_bytes: int, mesh: DeviceMesh) -> float:
        """Bytes of the collective, per group, in the convention above."""
        if self.kind is StepKind.PERMUTE:
            return tensor_bytes / mesh.size(self.source.split_axes)
        return tensor_bytes / mesh.size(a for a in self.source.split_axes if a not in self.axes)

    def __str__(self) -> str:
        where = f" dim {self.dim}" if self.dim >= 0 else ""
        where += f" → {self.to_dim}" if self.to_dim >= 0 else ""
        return f"{self.kind}({'.'.join(self.axes)}){where}"


def layouts_of(shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction = Reduction.SUM) -> list[Layout]:
    """Every even layout of a tensor of this shape, replication first, in a fixed order.

    Axes of one rank are left out: they neither split nor sum anything.
    """
    rank = len(shape)
    found: list[Layout] = []
    # 0 replica, 1 to rank a dimension, rank + 1 partial
    for places in itertools.product(*(range(rank + 2 if a.size > 1 else 1) for a in mesh.axes)):
        dims: list[list[str]] = [[] for _ in range(rank)]
        for name, place in zip(mesh.names, places, strict=True):
            if 0 < place <= rank:
                dims[place - 1].append(name)
        if any(s % mesh.size(d) or (d and s == 0) for s, d in zip(shape, dims, strict=True)):
            continue
        partial = tuple((n, reduction) for n, p in zip(mesh.names, places, strict=True) if p == rank + 1)
        found += [
            Layout(tuple(ordered), partial)
            for ordered in itertools.product(*(list(itertools.permutations(d)) for d in dims))
        ]
    return found


def steps_from(
    layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction = Reduction.SUM
) -> Iterator[Step]:
    """Every single step out of `layout`, except permutes (which relate whole classes of layouts).

    `reduction` is how pending values of this tensor combine; only sums can be made from replicas.
    """
    used = {*layout.split_axes, *layout.partial_axes}
    sharded = [s // mesh.size(d) for s, d in zip(shape, layout.dims, strict=True)]

    def with_dims(changes: dict[int, tuple[str, ...]], partial: tuple[tuple[str, Reduction], ...]) -> Layout:
        return Layout(tuple(changes.get(i, d) for i, d in enumerate(layout.dims)), partial)

    for k in range(1, len(layout.partial) + 1):
        for chosen in itertools.combinations(layout.partial, k):
            axes = tuple(a for a, _ in chosen)
            rest = tuple(p for p in layout.partial if p not in chosen)
            yield Step(StepKind.ALL_REDUCE, axes, layout, Layout(layout.dims, rest))
            for d, local in enumerate(sharded):
                if local and local % mesh.size(axes) == 0:
                    yield Step(StepKind.REDUCE_SCATTER, axes, layout, with_dims({d: layout.dims[d] + axes}, rest), d)
    for d, axes_of_dim in enumerate(layout.dims):
        for k in range(1, len(axes_of_dim) + 1):
            kept, moved = axes_of_dim[:-k], axes_of_dim[-k:]
            yield Step(StepKind.ALL_GATHER, moved, layout, with_dims({d: kept}, layout.partial), d)
            for to, local in enumerate(sharded):
                if to != d and local % mesh.size(moved) == 0:
                    target = with_dims({d: kept, to: layout.dims[to] + moved}, layout.partial)
                    yield Step(StepKind.ALL_TO_ALL, moved, layout, target, d, to)
    for name in mesh.names:
        if name in used or mesh.sizes[name] == 1:
            continue
        for d, local in enumerate(sharded):
            if local and local % mesh.sizes[name] == 0:
                target = with_dims({d: (*layout.dims[d], name)}, layout.partial)
                yield Step(StepKind.SLICE, (name,), layout, target, d)
        if reduction is Reduction.SUM:
            partial = tuple(sorted((*layout.partial, (name, Reduction.SUM)), key=lambda p: mesh.names.index(p[0])))
            yield Step(StepKind.TO_PARTIAL, (name,), layout, Layout(layout.dims, partial))
