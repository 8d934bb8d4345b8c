"""Softmax and its like while the dimensions that they are taken over are split.

Per split factor a softmax reduces a maximum and a sum of each row; its gradient one sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import unbroadcast
from planner.kernels.precision import widen
from planner.kernels.session import NoKernelError
from planner.kernels.shared import Call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.normalization.split import Operands, Reduction, total

__all__: list[str] = []

Axes = tuple[int, ...]


def _softmax_axes(op: Op, ndim: int) -> Axes:
    """Before version 13 the operand was seen as a matrix, cut at `axis`."""
    matrix = _is_matrix(op)
    axis = normalise_axis(op.attributes.get("axis", 1 if matrix else -1), ndim)
    return tuple(range(axis, ndim)) if matrix else (axis,)


def _is_matrix(op: Op) -> bool:
    if op.type == "com.microsoft::BiasSoftmax":
        return True
    if op.type.startswith("com.microsoft::"):
        return not op.type.endswith("_13")
    return 0 < op.opset < 13


def _softmax_product(y: Array, dy: Array, axes: Axes, place: ShardContext, *, logarithm: bool) -> Reduction:
    """The gradient of the operand from the result and its gradient."""
    sums = yield from total(np.sum(dy if logarithm else dy * y, axis=axes, keepdims=True), place)
    return dy - np.exp(y) * sums if logarithm else y * (dy - sums)


def _softmax_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    y, dy = widen(outputs[0]), widen(gradients[0])
    dx = yield from _softmax_product(y, dy, _softmax_axes(op, y.ndim), place, logarithm=op.type == "LogSoftmax")
    return [
        unbroadcast(dx, x.shape).astype(x.dtype) if want and x is not None else None
        for x, want in zip(inputs, wanted, strict=True)
    ]


@shared("LogSoftmax", "Softmax", "com.microsoft::BiasSoftmax", backward=_softmax_backward)
def _softmax(c: Call) -> Coroutine:
    x, xp = c.widened(), c.xp
    if c.op.type == "com.microsoft::BiasSoftmax":
        x = x + c.widened(1)
    axes = _softmax_axes(c.op, x.ndim)
    largest = yield from c.total(xp.max(x, axis=axes, keepdims=True), "max")
    shifted = x - largest
    e = xp.exp(shifted)
    sums = yield from c.total(xp.sum(e, axis=axes, keepdims=True))
    return [c.like(shifted - xp.log(sums) if c.op.type == "LogSoftmax" else e / sums)]


def _softmax_gradient_operator(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dY and the softmax of exported training graphs."""
    dy, y = widen(inputs[0]), widen(inputs[1])
    dx = yield from _softmax_product(y, dy, _softmax_axes(op, y.ndim), place, logarithm="::LogSoftmaxGrad" in op.type)
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype)]


kernel(
    [
        "com.microsoft::LogSoftmaxGrad",
        "com.microsoft::LogSoftmaxGrad_13",
        "com.microsoft::SoftmaxGrad",
        "com.microsoft::SoftmaxGrad_13",
    ],
    _softmax_gradient_operator,
)


@shared("Hardmax")
def _hardmax(c: Call) -> Coroutine:
    """One where the row has its first maximum.  Shards follow each other in the order of their ranks, so that of equal
    maxima the first rank's is the first."""
    x, xp = c.operand(), c.xp
    if not c.place.reduced_factors():
        raise NoKernelError(f"operator {c.op.name} is whole")
    (factor,) = c.place.reduced_factors()
    axes = _softmax_axes(c.op, x.ndim)
    first, length = axes[0], math.prod(x.shape[a] for a in axes)
    flat = xp.reshape(x, (*x.shape[:first], length, *x.shape[axes[-1] + 1 :]))
    best: Any = xp.argmax(flat, axis=first, keepdims=True)
    candidates = yield from c.gathered(xp.max(flat, axis=first, keepdims=True), factor)
    winner = xp.argmax(xp.concat(candidates, axis=first), axis=first, keepdims=True)
    places = xp.reshape(c.arange(length, flat), (length, *(1,) * (flat.ndim - first - 1)))
    hot = (places == best) & (winner == c.place.index[factor])
    return [xp.reshape(c.like(hot), x.shape)]
