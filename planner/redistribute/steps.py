"""One step of a redistribution: a collective, or a free local operation.

Layouts are even, so every step is fully described by the layouts before and after it and the axes over
which the ranks talk.  Bytes follow the convention of the cost models: the size of the whole tensor of the
group (all-gather's result; the operand of reduce-scatter and all-reduce; all shards together for
all-to-all); a permute counts one rank's shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from planner.ir import DeviceMesh, Layout, Reduction

__all__ = [
    "FREE",
    "Fits",
    "Parts",
    "RedistributionStep",
    "StepKind",
    "even_layouts",
    "folded",
    "layouts_of",
    "parts_of_both",
    "permute_sources",
    "reduction_of_both",
    "single_steps",
    "steps_from",
]

# Whether each of so many equal parts of a dimension divides evenly over the axes.
Fits = Callable[[int, tuple[str, ...], int], bool]
# The numbers of equal parts, beside one, that each dimension may be split in; empty: none has any.
Parts = tuple[tuple[int, ...], ...]


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
class RedistributionStep:
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

    @property
    def in_parts(self) -> bool:
        """Some dimension is split in equal parts, each by itself, before or after."""
        return bool(self.source.parts or self.target.parts)

    def unfolded(self, local: tuple[int, ...]) -> tuple[tuple[int, ...], RedistributionStep, tuple[int, ...]]:
        """A shard's shape where every dimension that is split in parts is two, which part and where in it; the step
        between such shards, in which no parts are left; and how many parts each dimension has, for `folded`."""
        counts = tuple(max(self.source.parts_of(d), self.target.parts_of(d)) for d in range(len(local)))
        view = self.source.unfolded(local, counts)[0]
        source, target = (x.unfolded(local, counts)[1] for x in (self.source, self.target))

        def place(dim: int) -> int:
            return dim if dim < 0 else dim + sum(n > 1 for n in counts[: dim + 1])

        plain = RedistributionStep(self.kind, self.axes, source, target, place(self.dim), place(self.to_dim))
        return view, plain, counts

    def __str__(self) -> str:
        where = f" dim {self.dim}" if self.dim >= 0 else ""
        where += f" → {self.to_dim}" if self.to_dim >= 0 else ""
        return f"{self.kind}({'.'.join(self.axes)}){where}"


def parts_of_both(source: Layout, target: Layout) -> Parts:
    """The equal parts that either layout splits each dimension in, for a lattice in which both are."""
    counts = [{x.parts_of(d) for x in (source, target)} - {1} for d in range(len(source.dims))]
    return tuple(map(tuple, counts)) if any(counts) else ()


def reduction_of_both(source: Layout, target: Layout) -> Reduction:
    """How sums that are pending in either layout are carried out."""
    return next((op for x in (source, target) for _, op in x.partial), Reduction.SUM)


def folded(view: Sequence[int], counts: Sequence[int]) -> tuple[int, ...]:
    """The shape in which dimensions of several parts are one again, of that of `RedistributionStep.unfolded`."""
    sizes = iter(view)
    return tuple(next(sizes) if n == 1 else next(sizes) * next(sizes) for n in counts)


def permute_sources(step: RedistributionStep, mesh: DeviceMesh) -> tuple[int, ...]:
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


def layouts_of(
    shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction = Reduction.SUM, parts: Parts = ()
) -> list[Layout]:
    """Every even layout of a tensor of this shape, replication first, in a fixed order.

    Axes of one rank are left out: they neither split nor sum anything.
    """
    names = tuple(a.name for a in mesh.axes if a.size > 1)
    return even_layouts(names, len(shape), _fits(shape, mesh), reduction, parts)


def even_layouts(
    names: tuple[str, ...], rank: int, fits: Fits, reduction: Reduction, parts: Parts = ()
) -> list[Layout]:
    """`layouts_of` over the axes `names`, where `fits` says what is even (it is true of no axes)."""
    found: list[Layout] = []
    # 0 replica, 1 to rank a dimension, rank + 1 partial
    for places in itertools.product(range(rank + 2), repeat=len(names)):
        dims: list[list[str]] = [[] for _ in range(rank)]
        for name, place in zip(names, places, strict=True):
            if 0 < place <= rank:
                dims[place - 1].append(name)
        partial = tuple((n, reduction) for n, p in zip(names, places, strict=True) if p == rank + 1)
        ways = [_ways(i, tuple(d), fits, parts) for i, d in enumerate(dims)]
        found += [
            _layout(ordered, counts, partial)
            for counts in itertools.product(*ways)
            for ordered in itertools.product(*(list(itertools.permutations(d)) for d in dims))
        ]
    return found


def _ways(dim: int, axes: tuple[str, ...], fits: Fits, parts: Parts) -> list[int]:
    """The numbers of parts in which the axes may split a dimension."""
    if not axes:
        return [1]
    return [n for n in (1, *(parts[dim] if parts else ())) if fits(dim, axes, n)]


def _layout(
    dims: tuple[tuple[str, ...], ...], counts: tuple[int, ...], partial: tuple[tuple[str, Reduction], ...]
) -> Layout:
    return Layout(dims, partial, counts if any(n > 1 for n in counts) else ())


def steps_from(
    layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh, reduction: Reduction = Reduction.SUM, parts: Parts = ()
) -> Iterator[RedistributionStep]:
    """Every single step out of `layout`, except permutes (which relate whole classes of layouts).

    `reduction` is how pending values of this tensor combine; only sums can be made from replicas.
    """
    names = tuple(a.name for a in mesh.axes if a.size > 1)
    return single_steps(layout, names, _fits(shape, mesh), reduction, parts)


def single_steps(
    layout: Layout, names: tuple[str, ...], fits: Fits, reduction: Reduction, parts: Parts = ()
) -> Iterator[RedistributionStep]:
    """`steps_from` over the axes `names`, where `fits` says what is even."""
    used = {*layout.split_axes, *layout.partial_axes}
    split = {d: (axes, layout.parts_of(d)) for d, axes in enumerate(layout.dims)}

    def changed(changes: dict[int, tuple[tuple[str, ...], int]], partial: tuple[tuple[str, Reduction], ...]) -> Layout:
        ways = [changes.get(d, way) for d, way in split.items()]
        return _layout(tuple(axes for axes, _ in ways), tuple(n if axes else 1 for axes, n in ways), partial)

    def further(dim: int, axes: tuple[str, ...]) -> Iterator[dict[int, tuple[tuple[str, ...], int]]]:
        """The ways to split a dimension over these axes as well: in as many parts as it is already."""
        before, count = split[dim]
        for n in _ways(dim, before + axes, fits, parts):
            if not before or n == count:
                yield {dim: (before + axes, n)}

    for k in range(1, len(layout.partial) + 1):
        for chosen in itertools.combinations(layout.partial, k):
            axes = tuple(a for a, _ in chosen)
            rest = tuple(p for p in layout.partial if p not in chosen)
            yield RedistributionStep(StepKind.ALL_REDUCE, axes, layout, changed({}, rest))
            for d in split:
                for way in further(d, axes):
                    yield RedistributionStep(StepKind.REDUCE_SCATTER, axes, layout, changed(way, rest), d)
    for d, (axes_of_dim, count) in split.items():
        for k in range(1, len(axes_of_dim) + 1):
            left, moved = axes_of_dim[:-k], axes_of_dim[-k:]
            yield RedistributionStep(StepKind.ALL_GATHER, moved, layout, changed({d: (left, count)}, layout.partial), d)
            for to in split:
                for way in further(to, moved) if to != d else ():
                    target = changed({d: (left, count), **way}, layout.partial)
                    yield RedistributionStep(StepKind.ALL_TO_ALL, moved, layout, target, d, to)
    for name in names:
        if name in used:
            continue
        for d in split:
            for way in further(d, (name,)):
                yield RedistributionStep(StepKind.SLICE, (name,), layout, changed(way, layout.partial), d)
        if reduction is Reduction.SUM:
            partial = tuple(sorted((*layout.partial, (name, Reduction.SUM)), key=lambda p: names.index(p[0])))
            yield RedistributionStep(StepKind.TO_PARTIAL, (name,), layout, changed({}, partial))


def _fits(shape: tuple[int, ...], mesh: DeviceMesh) -> Fits:
    return lambda d, axes, parts: shape[d] > 0 and shape[d] % (mesh.size(axes) * parts) == 0
