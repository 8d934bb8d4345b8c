"""Paths of gradients of which a rank never holds more than the part that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.ir import Layout
from planner.redistribute.steps import RedistributionStep, StepKind

__all__ = ["scattered"]


def scattered(steps: Sequence[RedistributionStep]) -> tuple[RedistributionStep, ...]:
    """The same redistribution of a sum: reduce-scatters over the axes that divide, then one all-reduce of the parts.

    Once, another way may take less time: an all-reduce that a switch sums, of which every rank keeps its part.  Where
    parts of gradients are added up over micro-batches all of it would be carried out for each of these; here the
    all-reduce waits for the end of the step.  Where the axes that are to divide do not come behind those that do
    already, only an all-reduce of whose result ranks keep a part is replaced.
    """
    if not steps or not steps[0].source.partial:
        return tuple(steps)
    source, target = steps[0].source, steps[-1].target
    direct = _direct(source, target)
    return tuple(steps) if direct is None else direct


def _direct(source: Layout, target: Layout) -> tuple[RedistributionStep, ...] | None:
    reductions = dict(source.partial)
    found: list[RedistributionStep] = []
    here = source
    for dim, (before, after) in enumerate(zip(source.dims, target.dims, strict=True)):
        if after[: len(before)] != before or (before and source.parts_of(dim) != target.parts_of(dim)):
            return None
        added = after[len(before) :]
        while added:
            count = _scattered_together(here, added)
            kind = StepKind.REDUCE_SCATTER if count else StepKind.SLICE
            now, added = added[: count or 1], added[count or 1 :]
            there = _split(here, target, dim, now)
            found.append(RedistributionStep(kind, now, here, there, dim))
            here = there
    if set(here.partial) - set(target.partial):
        axes = tuple(a for a, _ in here.partial if (a, reductions[a]) not in target.partial)
        found.append(RedistributionStep(StepKind.ALL_REDUCE, axes, here, target))
    return tuple(found) if not found or found[-1].target == target else None


def _scattered_together(here: Layout, added: Sequence[str]) -> int:
    """How many of the first axes that a dimension is to be split over are pending, in the order of the mesh."""
    place = {a: n for n, a in enumerate(here.partial_axes)}
    count = 0
    while count < len(added) and added[count] in place:
        if count and place[added[count]] < place[added[count - 1]]:
            break
        count += 1
    return count


def _split(here: Layout, target: Layout, dim: int, axes: tuple[str, ...]) -> Layout:
    dims = tuple(d + axes if n == dim else d for n, d in enumerate(here.dims))
    parts = tuple(target.parts_of(n) if d else 1 for n, d in enumerate(dims))
    partial = tuple(p for p in here.partial if p[0] not in axes)
    return replace(here, dims=dims, partial=partial, parts=parts if any(n > 1 for n in parts) else ())
