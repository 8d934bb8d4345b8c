"""The steps of redistributions as nodes."""

from __future__ import annotations

from collections.abc import Callable

from planner.emit.onnx.domain import DOMAIN
from planner.emit.onnx.ranks.local import all_gather, all_reduce, all_to_all
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.ir import DeviceMesh
from planner.redistribute import RedistributionStep, StepKind, folded, permute_sources

__all__ = ["apply", "group_of"]

_Apply = Callable[[Writer, RedistributionStep, Value, DeviceMesh, int, str], Value]


def apply(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    """This rank's shard after the step.  `name` is what a new value is called; where nothing happens to the rank's
    value it is the same one."""
    if not step.in_parts or step.kind is StepKind.PERMUTE:
        return _KINDS[step.kind](w, step, x, mesh, rank, name)
    view, plain, counts = step.unfolded(x.dims)
    apart = w.reshape(x, view)
    after = _KINDS[step.kind](w, plain, apart, mesh, rank, w.fresh(f"{name}/parts"))
    since = len(w.nodes)
    return w.named(w.reshape(after, folded(after.dims, counts)), name, since)


def group_of(mesh: DeviceMesh, axes: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """The ranks that `rank` meets over the axes, in the order of their shards."""
    return next(g for g in mesh.groups(axes) if rank in g)


def _reduction(step: RedistributionStep) -> str:
    return str(next(op for a, op in step.source.partial if a in step.axes))


def _all_reduce(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    return all_reduce(w, x, group_of(mesh, step.axes, rank), _reduction(step), name)


def _reduce_scatter(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    ranks = group_of(mesh, step.axes, rank)
    shape = (*x.dims[: step.dim], x.dims[step.dim] // len(ranks), *x.dims[step.dim + 1 :])
    return w.op(
        "ReduceScatter", [x], x.dtype, shape, domain=DOMAIN, name=name, ranks=list(ranks), axis=step.dim,
        op=_reduction(step),
    )  # fmt: skip


def _all_gather(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    return all_gather(w, x, group_of(mesh, step.axes, rank), step.dim, name)


def _all_to_all(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    return all_to_all(w, x, group_of(mesh, step.axes, rank), step.to_dim, step.dim, name)


def _slice(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    (axis,) = step.axes
    part = x.dims[step.dim] // mesh.sizes[axis]
    at = mesh.coordinates(rank)[axis]
    since = len(w.nodes)
    return w.named(w.slice(x, step.dim, at * part, (at + 1) * part), name, since)


def _to_partial(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    (axis,) = step.axes
    if mesh.coordinates(rank)[axis] == 0:
        return x
    since = len(w.nodes)
    return w.named(w.filled(x.dims, x.dtype), name, since)


def _permute(w: Writer, step: RedistributionStep, x: Value, mesh: DeviceMesh, rank: int, name: str) -> Value:
    sources = permute_sources(step, mesh)
    targets = [r for r, source in enumerate(sources) if source == rank]
    attributes = {"targets": targets} if targets else {}
    return w.op("Permute", [x], x.dtype, x.shape, domain=DOMAIN, name=name, source=sources[rank], **attributes)


_KINDS: dict[StepKind, _Apply] = {
    StepKind.ALL_REDUCE: _all_reduce,
    StepKind.REDUCE_SCATTER: _reduce_scatter,
    StepKind.ALL_GATHER: _all_gather,
    StepKind.ALL_TO_ALL: _all_to_all,
    StepKind.PERMUTE: _permute,
    StepKind.SLICE: _slice,
    StepKind.TO_PARTIAL: _to_partial,
}
