"""One step of a redistribution: a collective, or a free local operation.

Layouts are even, so every step is fully described by the layouts before and after it and the axes over
which the ranks talk.  Bytes follow the convention of the cost models: the size of the whole tensor of the
group (all-gather's result; the operand of reduce-scatter and all-reduce; all shards together for
all-to-all); a permute counts one rank's shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from planner.ir import DeviceMesh, Layout, Reduction

__all__ = [
    "FREE",
    "Fits",
    "Step",
    "StepKind",
    "even_layouts",
    "layouts_of",
    "permute_sources",
    "single_steps",
    "steps_from",
]

Fits = Callable[[int, tuple[str, ...]], bool]  # whether a dimension divides evenly over the axes


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


def permute_sources(step: Step, mesh: DeviceMesh) -> tuple[int, ...]:
    """Of a permute, the rank that each rank receives its whole shard from: a holder of its new region, of replicas the
    nearest."""
    split = {*step.source.split_axes, *step.target.split_axes}
    fixed = [n for n in mesh.names if n not in split]

    def place(rank: int, dims: tuple[tuple[str, ...], ...]) -> tuple[int, ...]:
        c = mesh.coordinates(rank)
        index = []
        for axes in dims:
            i = 0
            for a in axes:
                i = i * mesh.sizes[a] + c[a]
            index.append(i)
        return (*index, *(c[n] for n in fixed))

    holders: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.devices):
        holders.setdefault(place(rank, step.source.dims), []).append(rank)

    def source_of(rank: int) -> int:
        return min(holders[place(rank, step.target.dims)], key=lambda holder: abs(holder - rank))

    return tuple(map(source_of, range(mesh.devices)))


def layouts_of(shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction = Reduction.SUM) -> list[Layout]:
    """Every even layout of a tensor of this shape, replication first, in a fixed order.

    Axes of one rank are left out: they neither split nor sum anything.
    """
    names = tuple(a.name for a in mesh.axes if a.size > 1)
    return even_layouts(names, len(shape), _fits(shape, mesh), reduction)


def even_layouts(names: tuple[str, ...], rank: int, fits: Fits, reduction: Reduction) -> list[Layout]:
    """`layouts_of` over the axes `names`, where `fits` says what is even (it is true of no axes)."""
    found: list[Layout] = []
    # 0 replica, 1 to rank a dimension, rank + 1 partial
    for places in itertools.product(range(rank + 2), repeat=len(names)):
        dims: list[list[str]] = [[] for _ in range(rank)]
        for name, place in zip(names, places, strict=True):
            if 0 < place <= rank:
                dims[place - 1].append(name)
        if not all(fits(i, tuple(d)) for i, d in enumerate(dims) if d):
            continue
        partial = tuple((n, reduction) for n, p in zip(names, places, strict=True) if p == rank + 1)
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
    names = tuple(a.name for a in mesh.axes if a.size > 1)
    return single_steps(layout, names, _fits(shape, mesh), reduction)


def single_steps(layout: Layout, names: tuple[str, ...], fits: Fits, reduction: Reduction) -> Iterator[Step]:
    """`steps_from` over the axes `names`, where `fits` says what is even."""
    used = {*layout.split_axes, *layout.partial_axes}

    def with_dims(changes: dict[int, tuple[str, ...]], partial: tuple[tuple[str, Reduction], ...]) -> Layout:
        return Layout(tuple(changes.get(i, d) for i, d in enumerate(layout.dims)), partial)

    for k in range(1, len(layout.partial) + 1):
        for chosen in itertools.combinations(layout.partial, k):
            axes = tuple(a for a, _ in chosen)
            rest = tuple(p for p in layout.partial if p not in chosen)
            yield Step(StepKind.ALL_REDUCE, axes, layout, Layout(layout.dims, rest))
            for d, before in enumerate(layout.dims):
                if fits(d, before + axes):
                    yield Step(StepKind.REDUCE_SCATTER, axes, layout, with_dims({d: before + axes}, rest), d)
    for d, axes_of_dim in enumerate(layout.dims):
        for k in range(1, len(axes_of_dim) + 1):
            kept, moved = axes_of_dim[:-k], axes_of_dim[-k:]
            yield Step(StepKind.ALL_GATHER, moved, layout, with_dims({d: kept}, layout.partial), d)
            for to, before in enumerate(layout.dims):
                if to != d and fits(to, before + moved):
                    target = with_dims({d: kept, to: before + moved}, layout.partial)
                    yield Step(StepKind.ALL_TO_ALL, moved, layout, target, d, to)
    for name in names:
        if name in used:
            continue
        for d, before in enumerate(layout.dims):
            if fits(d, (*before, name)):
                yield Step(StepKind.SLICE, (name,), layout, with_dims({d: (*before, name)}, layout.partial), d)
        if reduction is Reduction.SUM:
            partial = tuple(sorted((*layout.partial, (name, Reduction.SUM)), key=lambda p: names.index(p[0])))
            yield Step(StepKind.TO_PARTIAL, (name,), layout, Layout(layout.dims, partial))


def _fits(shape: tuple[int, ...], mesh: DeviceMesh) -> Fits:
    return lambda d, axes: shape[d] > 0 and shape[d] % mesh.size(axes) == 0
