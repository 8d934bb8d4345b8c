"""Look-ups in a table, and updates of a tensor, of which every rank holds a part.

A rank reads or writes what falls into its part; for the rest a look-up gives zero, so that it is a pending sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis, string
from planner.kernels.shared import Call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.indexing.gradient import (
    Coordinates,
    coordinates_along,
    coordinates_nd,
    gather_gradient,
    reduced_gradients,
    tensor_scatter_coordinates,
)
from planner.operators.layout.split import whole_shape
from planner.rules.rule import Dims

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _given(inputs: Operands, index: int) -> Array:
    value = inputs[index]
    assert value is not None
    return value


def _gather_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Each rank collects the gradient of the rows it holds."""
    table, dy = _given(inputs, 0), gradients[0]
    if dy is None or not wanted[0]:
        return [None, None]
    return [_rows_gradient(dy, _given(inputs, 1), op.attributes.get("axis", 0), table.shape, place), None]
    yield  # a generator that never communicates


@shared("Gather", backward=_gather_backward)
def _gather(c: Call) -> Coroutine:
    """Rows that other ranks hold read as zero: the result is a pending sum."""
    table, xp = c.operand(0), c.xp
    axis = c.axis(0, table.ndim)
    local, held = _places(c, c.operand(1), table.shape[axis], "v")
    found = xp.take(table, local, axis=axis)
    return [_kept(c, held, found, table.ndim - axis - 1)]
    yield  # a generator that never communicates


def _places(c: Call, indices: Any, rows: int, factor: str) -> tuple[Any, Any]:
    """Indices among this rank's rows, 0 where they are others', and whether they are its."""
    xp, whole = c.xp, rows * c.place.shards.get(factor, 1)
    local = xp.where(indices < 0, indices + whole, indices) - c.place.offset.get(factor, 0)
    held = (local > -1) & (local < rows)
    return xp.where(held, local, xp.asarray(0, dtype=local.dtype)), held


def _kept(c: Call, held: Any, found: Any, behind: int) -> Any:
    """What was found where this rank holds it, else zero; `found` has further dimensions behind those of `held`."""
    mask = c.xp.reshape(held, (*held.shape, *(1,) * behind)) if behind else held
    return c.xp.where(mask, found, c.xp.asarray(0, dtype=found.dtype))


def _gather_grad(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """com.microsoft::GatherGrad(shape, indices, dY): the shape is that of this rank's part of the table."""
    shape = tuple(int(n) for n in _given(inputs, 0))
    return [_rows_gradient(_given(inputs, 2), _given(inputs, 1), op.attributes.get("axis", 0), shape, place)]
    yield  # a generator that never communicates


def _rows_gradient(dy: Array, indices: Array, axis: int, shape: tuple[int, ...], place: ShardContext) -> Array:
    axis = normalise_axis(axis, len(shape))
    local, held = _local_rows(indices, shape[axis], place)
    mask = held.reshape(held.shape + (1,) * (len(shape) - axis - 1))
    mine = np.where(mask, dy, np.zeros((), dtype=dy.dtype))
    return gather_gradient(mine, np.where(held, local, 0), axis, shape)


def _local_rows(indices: Array, rows: int, place: ShardContext) -> tuple[Array, Array]:
    """Indices relative to this rank's rows, and whether they fall among them."""
    whole = rows * place.shards.get("v", 1)
    local = np.where(indices < 0, indices + whole, indices) - place.offset.get("v", 0)
    return local, np.asarray((local >= 0) & (local < rows))


@dataclass(frozen=True, slots=True)
class _Held:
    """The addressed elements that this rank holds: which of them (`mask`), and where they lie in its part."""

    mask: Array
    where: Coordinates


def _held(op: Op, inputs: Operands, place: ShardContext) -> _Held:
    """What look-ups in, or updates of, operand 0 address of this rank's part of it."""
    rule = place.rule
    assert rule is not None
    return _held_of(op, _given(inputs, 0).shape, rule.operands[0] or (), inputs, 1, place)


def _held_of(op: Op, local: Sequence[int], dims: Dims, inputs: Operands, indices: int, place: ShardContext) -> _Held:
    """The same for data of the shape `local` with factors `dims`; operand `indices` holds the indices.

    Addresses are made for the whole along the dimensions whose factor only the data carries, and then shifted;
    along the others data and indices are cut together.
    """
    rule = place.rule
    assert rule is not None
    together = {f for d in rule.operands[indices] or () for f in d}
    own = tuple(tuple(f for f in d if place.splits(f) and f not in together) for d in dims)
    coordinates = _coordinates(op, inputs, _given(inputs, indices), whole_shape(local, own, place))
    mask = np.ones(np.broadcast_shapes(*(c.shape for c in coordinates)), dtype=bool)
    shifted = []
    for c, size, factors in zip(coordinates, local, own, strict=False):
        at = c - sum(place.offset[f] for f in factors)
        mask &= (at >= 0) & (at < size)
        shifted.append(at)
    return _Held(mask, tuple(np.broadcast_to(c, mask.shape)[mask] for c in shifted))


def _coordinates(op: Op, inputs: Operands, indices: Array, shape: tuple[int, ...]) -> Coordinates:
    if op.type in ("GatherND", "ScatterND", "com.microsoft::GatherNDGrad"):
        return coordinates_nd(indices, op.attributes.get("batch_dims", 0), shape)
    if op.type == "TensorScatter":
        starts = inputs[2] if len(inputs) > 2 else None
        circular = string(op.attributes.get("mode"), "linear") == "circular"
        return tensor_scatter_coordinates(
            shape, indices.shape, op.attributes.get("axis", -2), starts, circular=circular
        )
    return coordinates_along(indices, op.attributes.get("axis", 0), shape)


def _look_up_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    data, dy = _given(inputs, 0), gradients[0]
    if dy is None or not wanted[0]:
        return [None, None]
    held = _held(op, inputs, place)
    dx = np.zeros(data.shape, dtype=dy.dtype)
    np.add.at(dx, held.where, dy[held.mask])
    return [dx, None]
    yield  # a generator that never communicates


@shared("GatherElements", backward=_look_up_backward)
def _elements(c: Call) -> Coroutine:
    """Along the other dimensions the places are those of the indices, which may cover a part of the data."""
    data, indices, xp = c.operand(0), c.operand(1), c.xp
    axis = c.axis(0, data.ndim)
    local, held = _places(c, indices, data.shape[axis], "v")
    for dim, (size, covered) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if dim != axis and (size != covered or c.place.splits(f"w{dim}")):
            places, mine = _places(c, c.arange(covered, indices), size, f"w{dim}")
            data = xp.take(data, places, axis=dim)
            held = held & xp.reshape(mine, (covered, *(1,) * (data.ndim - dim - 1)))
    found = xp.take_along_axis(data, xp.astype(local, xp.int64), axis=axis)
    return [_kept(c, held, found, 0)]
    yield  # a generator that never communicates


@shared("GatherND", backward=_look_up_backward)
def _coordinates_looked_up(c: Call) -> Coroutine:
    """Coordinates are counted through the dimensions that they refer to, which are seen as one."""
    data, indices, xp = c.operand(0), c.operand(1), c.xp
    batch, depth = int(c.attr("batch_dims", 0)), indices.shape[-1]
    entries, sizes, rest = data.shape[:batch], data.shape[batch : batch + depth], data.shape[batch + depth :]
    count = math.prod(entries)
    at = xp.reshape(c.arange(count, indices), (*entries, *(1,) * (indices.ndim - 1 - batch)))
    held = None
    for k, size in enumerate(sizes):
        local, mine = _places(c, indices[..., k], size, f"v{k}")
        at = at * size + local
        held = mine if held is None else held & mine
    table = xp.reshape(data, (count * math.prod(sizes), *rest))
    return [_kept(c, held, xp.take(table, at, axis=0), len(rest))]
    yield  # a generator that never communicates


def _look_up_gradient(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """com.microsoft::GatherElementsGrad(dY, shape, indices) and GatherNDGrad(shape, indices, dY): the shape is that of
    this rank's part."""
    rule = place.rule
    assert rule is not None
    stated, indices, at = (0, 1, 2) if op.type.endswith("NDGrad") else (1, 2, 0)
    shape = tuple(int(n) for n in _given(inputs, stated))
    dy, held = _given(inputs, at), _held_of(op, shape, rule.results[0] or (), inputs, indices, place)
    dx = np.zeros(shape, dtype=dy.dtype)
    np.add.at(dx, held.where, dy[held.mask])
    return [dx]
    yield  # a generator that never communicates


_COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _update_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Applies the updates that fall into this rank's part."""
    data, held = _given(inputs, 0).copy(), _held(op, inputs, place)
    updates = _given(inputs, _updates(op))[held.mask]
    combine = _COMBINE.get(_reduction(op))
    if combine is None:
        data[held.where] = updates
    else:
        combine.at(data, held.where, updates)
    return [data]
    yield  # a generator that never communicates


def _update_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Updates that fall elsewhere get no gradient here: theirs is a pending sum."""
    dy, at = gradients[0], _updates(op)
    found: list[Array | None] = [None] * len(inputs)
    if dy is None:
        return found
    data, updates, held = _given(inputs, 0), _given(inputs, at), _held(op, inputs, place)
    dx, mine = reduced_gradients(_reduction(op), data, held.where, updates[held.mask], outputs[0], dy)
    du = np.zeros(updates.shape, dtype=dy.dtype)
    du[held.mask] = mine
    found[0], found[at] = dx if wanted[0] else None, du if wanted[at] else None
    return found
    yield  # a generator that never communicates


def _updates(op: Op) -> int:
    return 1 if op.type == "TensorScatter" else 2


def _reduction(op: Op) -> str:
    return string(op.attributes.get("reduction"), "none")


kernel(["com.microsoft::GatherGrad"], _gather_grad)
kernel(["com.microsoft::GatherElementsGrad", "com.microsoft::GatherNDGrad"], _look_up_gradient)
kernel(["Scatter", "ScatterElements", "ScatterND", "TensorScatter"], _update_forward, _update_backward)
