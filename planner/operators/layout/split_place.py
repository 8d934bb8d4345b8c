"""Operators that need to know which part of the whole they hold, and nothing of other ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import vjp
from planner.kernels.session import NoKernelError
from planner.kernels.shared import Call, shared
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.layout.split import whole_shape

__all__: list[str] = []

Operands = Sequence["Array | None"]
_TILES_BY_OPERAND = 6  # operator set since which Tile is told of all dimensions at once


def _first(inputs: Operands) -> Array:
    x = inputs[0]
    assert x is not None
    return x


def _reshaped_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    x, dy = _first(inputs), gradients[0]
    return [None if dy is None or not wanted[0] else dy.reshape(x.shape), *[None] * (len(inputs) - 1)]
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


def _trilu_back(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    dy, given = gradients[0], inputs[1] if len(inputs) > 1 else None
    if dy is None or not wanted[0]:
        return [None] * len(inputs)
    k = (0 if given is None else int(given.reshape(()))) + place.offset.get("r", 0) - place.offset.get("c", 0)
    return [np.triu(dy, k) if op.attributes.get("upper", 1) else np.tril(dy, k), *[None] * (len(inputs) - 1)]
    yield  # never communicates


@shared("Reshape", "Squeeze", backward=_reshaped_back)
def _reshaped(c: Call) -> Coroutine:
    """The result's local shape follows from its factors; Squeeze drops what has one element in the whole."""
    x, place = c.operand(), c.place
    if c.op.type == "Squeeze":
        whole = whole_shape(x.shape, c.rule.operands[0], place)
        return [c.xp.reshape(x, tuple(n for n, all_ in zip(x.shape, whole, strict=True) if all_ != 1))]
    dims = c.rule.results[0] or ()
    return [c.xp.reshape(x, tuple(math.prod(len(c.places(f)) for f in d) for d in dims))]
    yield  # never communicates


@shared("Tile", backward=_tiled_back)
def _tiled(c: Call) -> Coroutine:
    """Factor `k…` counts the copies along a dimension."""
    repeats = c.integers(1, "repeats") if c.op.opset >= _TILES_BY_OPERAND else None
    if repeats is None:
        raise NoKernelError(f"operator {c.op.name}: Tile along one axis")
    return [c.xp.tile(c.operand(), tuple(r // c.shards([f"k{i}"]) for i, r in enumerate(repeats)))]
    yield  # never communicates


@shared("Trilu", backward=_trilu_back)
def _trilu(c: Call) -> Coroutine:
    """Zeros outside the triangle of the whole matrix, whose diagonal lies elsewhere in a part of it."""
    k = (c.integers(1, "k") or (0,))[0] + _rows_ahead(c)
    return [(c.xp.triu if c.attr("upper", 1) else c.xp.tril)(c.operand(), k=k)]
    yield  # never communicates


@shared("EyeLike")
def _eye_like(c: Call) -> Coroutine:
    k = int(c.attr("k", 0)) + _rows_ahead(c)
    return list(c.run(replace(c.op, attributes={**c.op.attributes, "k": k}), [c.operand()]))
    yield  # never communicates


def _rows_ahead(c: Call) -> int:
    """By how much more rows than columns lie before this rank's part of a matrix."""
    return c.place.offset.get("r", 0) - c.place.offset.get("c", 0)


@shared("Range")
def _range(c: Call) -> Coroutine:
    start, step = c.operand(0), c.operand(2)
    return [c.constant(np.array(c.places("d")), start.dtype) * step + start]
    yield  # never communicates


@shared("Shape", "Size")
def _size_of(c: Call) -> Coroutine:
    """Those of the whole."""
    whole = np.array(whole_shape(c.operand().shape, c.rule.operands[0], c.place), dtype=np.int64)
    return [c.constant(whole.prod() if c.op.type == "Size" else whole[c.attr("start", 0) : c.attr("end", len(whole))])]
    yield  # never communicates


@shared("OneHot")
def _one_hot(c: Call) -> Coroutine:
    """Each rank compares with the classes of its part; indices of another type count as int64, as ONNX has it."""
    indices, values, xp = c.xp.astype(c.operand(0), c.xp.int64), c.operand(2), c.xp
    axis = c.axis(-1, indices.ndim + 1)
    mine = np.array(c.places("v")).reshape((-1,) + (1,) * (indices.ndim - axis))
    at = xp.where(indices < 0, indices + c.rule.factors["v"], indices)
    hot = xp.expand_dims(at, axis=axis) == c.constant(mine)
    return [xp.where(hot, values[1], values[0])]
    yield  # never communicates
