"""Collectives on virtual devices, each as the real one moves data: group by group, rank by rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.errors import VerificationError
from planner.ir import DeviceMesh, Reduction
from planner.kernels.shards import Array, Shards, combine, once_each
from planner.redistribute import RedistributionStep, StepKind, folded, permute_sources

__all__ = ["apply"]


def apply(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    """The shards after `step`.  Ranks that end with the same value by construction share one array."""
    if not step.in_parts or step.kind is StepKind.PERMUTE:
        return _KINDS[step.kind](step, shards, mesh)
    view, plain, counts = step.unfolded(shards[0].shape)
    after = _KINDS[step.kind](plain, once_each(shards, lambda x: x.reshape(view)), mesh)
    return once_each(after, lambda x: x.reshape(folded(x.shape, counts)))


def _grouped(
    step: RedistributionStep, shards: Shards, mesh: DeviceMesh, work: Callable[[list[Array]], list[Array]]
) -> Shards:
    """Runs `work` on the values of every group; groups with the very same arrays are computed once."""
    out: list[Array] = list(shards)
    done: dict[tuple[int, ...], list[Array]] = {}
    for group in mesh.groups(step.axes):
        values = [shards[r] for r in group]
        key = tuple(map(id, values))
        if key not in done:
            done[key] = work(values)
        for r, v in zip(group, done[key], strict=True):
            out[r] = v
    return tuple(out)


def _reduction(step: RedistributionStep) -> Reduction:
    found = {op for a, op in step.source.partial if a in step.axes}
    if len(found) != 1:
        axes = ".".join(step.axes)
        raise VerificationError(
            f"{step} reduces over {axes}, where {step.source} holds {len(found)} pending reductions"
        )
    return found.pop()


def _all_reduce(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    return _grouped(step, shards, mesh, lambda v: [combine(v, _reduction(step))] * len(v))


def _reduce_scatter(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    return _grouped(step, shards, mesh, lambda v: list(np.split(combine(v, _reduction(step)), len(v), axis=step.dim)))


def _all_gather(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    return _grouped(step, shards, mesh, lambda v: [np.concatenate(v, axis=step.dim)] * len(v))


def _all_to_all(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    def exchange(values: list[Array]) -> list[Array]:
        parts = [np.split(v, len(values), axis=step.to_dim) for v in values]
        return [np.concatenate([p[i] for p in parts], axis=step.dim) for i in range(len(values))]

    return _grouped(step, shards, mesh, exchange)


def _slice(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    (axis,) = step.axes
    pieces: dict[int, list[Array]] = {}
    out = []
    for rank, value in enumerate(shards):
        if id(value) not in pieces:
            pieces[id(value)] = list(np.split(value, mesh.sizes[axis], axis=step.dim))
        out.append(pieces[id(value)][mesh.coordinates(rank)[axis]])
    return tuple(out)


def _to_partial(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    (axis,) = step.axes
    zeros: dict[int, Array] = {}
    out = []
    for rank, value in enumerate(shards):
        if mesh.coordinates(rank)[axis] == 0:
            out.append(value)
        else:
            out.append(zeros.setdefault(id(value), np.zeros_like(value)))
    return tuple(out)


def _permute(step: RedistributionStep, shards: Shards, mesh: DeviceMesh) -> Shards:
    """Every rank receives one whole shard from the rank that held its new region, replicas by the nearest rank."""
    return tuple(shards[source] for source in permute_sources(step, mesh))


_KINDS: dict[StepKind, Callable[[RedistributionStep, Shards, DeviceMesh], Shards]] = {
    StepKind.ALL_REDUCE: _all_reduce,
    StepKind.REDUCE_SCATTER: _reduce_scatter,
    StepKind.ALL_GATHER: _all_gather,
    StepKind.ALL_TO_ALL: _all_to_all,
    StepKind.PERMUTE: _permute,
    StepKind.SLICE: _slice,
    StepKind.TO_PARTIAL: _to_partial,
}
