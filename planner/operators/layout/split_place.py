"""Operators that need to know which part of the whole they hold, and nothing of other ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import vjp
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.layout.split import whole_shape

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _first(inputs: Operands) -> Array:
    x = inputs[0]
    assert x is not None
    return x


def _reshaped(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """The result's local shape follows from its factors; Squeeze drops what has one element in the whole."""
    x, rule = _first(inputs), place.rule
    assert rule is not None
    if op.type == "Squeeze":
        whole = whole_shape(x.shape, rule.operands[0], place)
        return [x.reshape([n for n, all_ in zip(x.shape, whole, strict=True) if all_ != 1])]
    dims = rule.results[0] or ()
    return [x.reshape([math.prod(rule.factors[f] // place.shards.get(f, 1) for f in d) for d in dims])]
    yield  # never communicates


def _reshaped_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = _first(inputs), gradients[0]
    return [None if dy is None or not wanted[0] else dy.reshape(x.shape), *[None] * (len(inputs) - 1)]
    yield  # never communicates


def _tiled(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    return run_local(op, _local_repeats(inputs, place))
    yield  # never communicates


def _tiled_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The gradient of this rank's copies: a pending sum."""
    return vjp(op, _local_repeats(inputs, place), outputs, gradients, wanted)
    yield  # never communicates


def _local_repeats(inputs: Operands, place: ShardContext) -> list[Array | None]:
    """Repeats of this rank: factor `k…` counts the copies along a dimension."""
    x, repeats = inputs[0], inputs[1]
    assert repeats is not None
    local = [int(r) // place.shards.get(f"k{i}", 1) for i, r in enumerate(repeats)]
    return [x, np.array(local, dtype=np.int64)]


def _triangle(op: Op, x: Array, inputs: Operands, place: ShardContext) -> Array:
    """`x` with zeros outside the triangle of the whole matrix."""
    given = inputs[1] if len(inputs) > 1 else None
    k = 0 if given is None else int(given.reshape(()))
    rows = np.arange(x.shape[-2])[:, None] + place.offset.get("r", 0)
    columns = np.arange(x.shape[-1]) + place.offset.get("c", 0)
    inside = columns - rows >= k if op.attributes.get("upper", 1) else columns - rows <= k
    return np.where(inside, x, np.zeros((), dtype=x.dtype))


def _trilu(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    return [_triangle(op, _first(inputs), inputs, place)]
    yield  # never communicates


def _trilu_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    dy = gradients[0]
    return [None if dy is None or not wanted[0] else _triangle(op, dy, inputs, place), *[None] * (len(inputs) - 1)]
    yield  # never communicates


def _eye_like(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    x = _first(inputs)
    made = run_local(replace(op, attributes={**op.attributes, "k": 0}), [x[:1, :1]])[0]
    assert made is not None
    rows = np.arange(x.shape[0])[:, None] + place.offset.get("r", 0)
    columns = np.arange(x.shape[1]) + place.offset.get("c", 0)
    return [(columns - rows == op.attributes.get("k", 0)).astype(made.dtype)]
    yield  # never communicates


def _range(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    start, _, step = (np.asarray(v) for v in inputs)
    rule = place.rule
    assert rule is not None
    count = rule.factors["d"] // place.shards["d"]
    places = np.arange(place.offset["d"], place.offset["d"] + count)
    return [(start + places.astype(start.dtype) * step).astype(start.dtype)]
    yield  # never communicates


def _size_of(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Shape and Size state that of the whole."""
    rule = place.rule
    assert rule is not None
    whole = np.array(whole_shape(_first(inputs).shape, rule.operands[0], place), dtype=np.int64)
    if op.type == "Size":
        return [np.asarray(whole.prod())]
    return [whole[op.attributes.get("start", 0) : op.attributes.get("end", len(whole))]]
    yield  # never communicates


def _one_hot(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Each rank compares with the classes of its part; indices of another type count as int64, as ONNX has it."""
    indices, depth, values = (np.asarray(v) for v in inputs)
    indices = indices.astype(np.int64)
    rule = place.rule
    assert rule is not None
    classes = int(depth.reshape(()))
    axis = normalise_axis(op.attributes.get("axis", -1), indices.ndim + 1)
    count = rule.factors["v"] // place.shards["v"]
    mine = np.arange(place.offset["v"], place.offset["v"] + count)
    at = np.where(indices < 0, indices + classes, indices)
    hot = np.expand_dims(at, axis) == mine.reshape((-1,) + (1,) * (indices.ndim - axis))
    return [np.where(hot, values[1], values[0]).astype(values.dtype)]
    yield  # never communicates


kernel(["Reshape", "Squeeze"], _reshaped, _reshaped_back)
kernel(["Tile"], _tiled, _tiled_back)
kernel(["Trilu"], _trilu, _trilu_back)
kernel(["EyeLike"], _eye_like)
kernel(["Range"], _range)
kernel(["Shape", "Size"], _size_of)
kernel(["OneHot"], _one_hot)
