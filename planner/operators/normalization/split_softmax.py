"""Softmax and its like while the dimensions that they are taken over are split.

Per split factor a softmax reduces a maximum and a sum of each row; its gradient one sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import unbroadcast
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext, all_gather
from planner.operators.normalization.split import Operands, Reduction, reduced_factors, total

__all__: list[str] = []

Axes = tuple[int, ...]


def _softmax_axes(op: Op, ndim: int, *, matrix: bool) -> Axes:
    """Before version 13 the operand was seen as a matrix, cut at `axis`."""
    axis = normalise_axis(op.attributes.get("axis", 1 if matrix else -1), ndim)
    return tuple(range(axis, ndim)) if matrix else (axis,)


def _is_matrix(op: Op) -> bool:
    if op.type == "com.microsoft::BiasSoftmax":
        return True
    if op.type.startswith("com.microsoft::"):
        return not op.type.endswith("_13")
    return 0 < op.opset < 13


def _softmax_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    x = widen(inputs[0])
    if op.type == "com.microsoft::BiasSoftmax":
        x = x + widen(inputs[1])
    axes = _softmax_axes(op, x.ndim, matrix=_is_matrix(op))
    largest = yield from total(x.max(axis=axes, keepdims=True), place, "max")
    shifted = x - largest
    e = np.exp(shifted)
    sums = yield from total(e.sum(axis=axes, keepdims=True), place)
    y = shifted - np.log(sums) if op.type == "LogSoftmax" else e / sums
    assert inputs[0] is not None
    return [y.astype(inputs[0].dtype)]


def _softmax_product(y: Array, dy: Array, axes: Axes, place: ShardContext, *, logarithm: bool) -> Reduction:
    """The gradient of the operand from the result and its gradient."""
    sums = yield from total(np.sum(dy if logarithm else dy * y, axis=axes, keepdims=True), place)
    return dy - np.exp(y) * sums if logarithm else y * (dy - sums)


def _softmax_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    y, dy = widen(outputs[0]), widen(gradients[0])
    axes = _softmax_axes(op, y.ndim, matrix=_is_matrix(op))
    dx = yield from _softmax_product(y, dy, axes, place, logarithm=op.type == "LogSoftmax")
    return [
        unbroadcast(dx, x.shape).astype(x.dtype) if want and x is not None else None
        for x, want in zip(inputs, wanted, strict=True)
    ]


def _softmax_gradient_operator(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY and the softmax of exported training graphs."""
    dy, y = widen(inputs[0]), widen(inputs[1])
    axes = _softmax_axes(op, y.ndim, matrix=_is_matrix(op))
    dx = yield from _softmax_product(y, dy, axes, place, logarithm="::LogSoftmaxGrad" in op.type)
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype)]


kernel(["LogSoftmax", "Softmax", "com.microsoft::BiasSoftmax"], _softmax_forward, _softmax_backward)
kernel(
    [
        "com.microsoft::LogSoftmaxGrad",
        "com.microsoft::LogSoftmaxGrad_13",
        "com.microsoft::SoftmaxGrad",
        "com.microsoft::SoftmaxGrad_13",
    ],
    _softmax_gradient_operator,
)


def _hardmax(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """One where the row has its first maximum.  Shards follow each other in the order of their ranks, so that of equal
    maxima the first rank's is the first."""
    x = inputs[0]
    assert x is not None
    (factor,) = reduced_factors(place)
    axes = _softmax_axes(op, x.ndim, matrix=_is_matrix(op))
    flat = x.reshape(*x.shape[: axes[0]], math.prod(x.shape[a] for a in axes), *x.shape[axes[-1] + 1 :])
    best = np.expand_dims(flat.argmax(axis=axes[0]), axes[0])
    candidates = yield from all_gather(np.take_along_axis(flat, best, axes[0]), factor)
    mine = np.stack(candidates).argmax(axis=0) == place.index[factor]
    y = np.zeros_like(flat)
    np.put_along_axis(y, best, mine.astype(x.dtype), axes[0])
    return [y.reshape(x.shape)]


kernel(["Hardmax"], _hardmax)
