"""Grids of places of which a rank makes a part, and regions of images of which it holds some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.gradients import vjp
from planner.kernels.local import run_local
from planner.kernels.shards import Array
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.sampling.gradient import affine_base, affine_gradient

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _base(op: Op, inputs: Operands, place: ShardContext) -> Array:
    """The places of this rank before they are mapped."""
    theta, sizes = inputs[0], inputs[1]
    assert theta is not None
    assert sizes is not None
    image = [int(n) for n in sizes[2:]]
    ranges = []
    for d, n in enumerate(image):
        start, shards = place.offset.get(f"s{d}", 0), place.shards.get(f"s{d}", 1)
        ranges.append(slice(start, start + n // shards))
    return affine_base(image, align=bool(op.attributes.get("align_corners", 0)))[tuple(ranges)]


def _affine_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    theta = inputs[0]
    assert theta is not None
    return [np.einsum("...j,nij->n...i", _base(op, inputs, place), theta).astype(theta.dtype)]
    yield  # a generator that never communicates


def _affine_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    theta, dy = inputs[0], gradients[0]
    assert theta is not None
    assert dy is not None
    return [affine_gradient(_base(op, inputs, place), dy).astype(theta.dtype), None]
    yield  # a generator that never communicates


def _own_regions(op: Op, inputs: Operands, place: ShardContext) -> tuple[list[Array | None], Array]:
    """The operands with images numbered from this rank's first, and the regions that lie in its images."""
    x, regions = inputs[0], inputs[1]
    assert x is not None
    assert regions is not None
    images = regions[:, 0].astype(np.int64) if op.type == "MaxRoiPool" else np.asarray(inputs[2])
    local = images - place.offset.get("b", 0)
    held = (local >= 0) & (local < x.shape[0])
    local = np.where(held, local, 0)
    if op.type == "MaxRoiPool":
        return [x, np.concatenate([local[:, None].astype(regions.dtype), regions[:, 1:]], axis=1)], held
    return [x, regions, local], held


def _only(y: Array, held: Array) -> Array:
    return np.where(held.reshape(-1, *(1,) * (y.ndim - 1)), y, np.zeros((), dtype=y.dtype))


def _regions_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    local, held = _own_regions(op, inputs, place)
    y = run_local(op, local)[0]
    assert y is not None
    return [_only(y, held)]
    yield  # a generator that never communicates


def _regions_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    dy = gradients[0]
    assert dy is not None
    local, held = _own_regions(op, inputs, place)
    return vjp(op, local, outputs, [_only(dy, held)], wanted)
    yield  # a generator that never communicates


kernel(["AffineGrid"], _affine_forward, _affine_backward)
kernel(["MaxRoiPool", "RoiAlign"], _regions_forward, _regions_backward)
