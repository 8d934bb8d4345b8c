"""Reductions, cumulative sums and the largest elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.kernels.attributes import Array, axes_of, normalise_axis
from planner.kernels.gradients import Call, register

__all__ = ["cumulated_product_gradient", "product_of_others"]

Gradients = list["Array | None"]


def _reduced(c: Call) -> tuple[tuple[int, ...], Array, Array]:
    """The axes, and the result and its gradient with the reduced dimensions kept as one."""
    axes = axes_of(c.op, c.inputs, 1, c.x.ndim)
    if not axes:
        axes = () if c.attr("noop_with_empty_axes", 0) else tuple(range(c.x.ndim))
    axes = tuple(dict.fromkeys(axes))
    one_shape = tuple(1 if i in axes else s for i, s in enumerate(c.x.shape))
    return axes, c.y.reshape(one_shape), c.dy.reshape(one_shape)


def _reduction(kind: str, product: Callable[[Array, Array, Array, tuple[int, ...]], Any]) -> None:
    def gradients(c: Call) -> Gradients:
        axes, y, dy = _reduced(c)
        return [np.broadcast_to(product(c.x, y, dy, axes), c.x.shape)]

    register(kind)(gradients)


def product_of_others(x: Array, axes: tuple[int, ...]) -> Array:
    """Of every element, the product of all others along `axes`; exact where elements are zero."""
    zeros = x == 0
    count = zeros.sum(axis=axes, keepdims=True)
    rest = np.where(zeros, 1, x).prod(axis=axes, keepdims=True, dtype=x.dtype)
    alone = np.where(zeros, rest, rest / np.where(zeros, 1, x))
    return np.where(count - zeros > 0, 0, alone).astype(x.dtype)


def _extremum(x: Array, y: Array, dy: Array, axes: tuple[int, ...]) -> Array:
    """Elements that tie share the gradient equally."""
    held = (x == y).astype(dy.dtype)
    return np.asarray(held * (dy / held.sum(axis=axes, keepdims=True)))


_reduction("ReduceSum", lambda x, y, dy, axes: dy)
_reduction("ReduceMean", lambda x, y, dy, axes: dy / math.prod(x.shape[a] for a in axes))
_reduction("ReduceMax", _extremum)
_reduction("ReduceMin", _extremum)
_reduction("ReduceL1", lambda x, y, dy, axes: dy * np.sign(x))
_reduction("ReduceL2", lambda x, y, dy, axes: dy * x / np.where(y == 0, 1, y))
_reduction("ReduceSumSquare", lambda x, y, dy, axes: 2 * dy * x)
_reduction("ReduceLogSum", lambda x, y, dy, axes: dy * np.exp(-y))
_reduction("ReduceLogSumExp", lambda x, y, dy, axes: dy * np.exp(x - y))
_reduction("ReduceProd", lambda x, y, dy, axes: dy * product_of_others(x, axes))


@register("CumSum")
def _cumsum(c: Call) -> Gradients:
    """The transpose of a running sum is the running sum from the other end."""
    axis = normalise_axis(int(c.operand(1).reshape(())), c.x.ndim)
    backward = not c.attr("reverse", 0)
    dy = np.flip(c.dy, axis) if backward else c.dy
    total = np.cumsum(dy, axis=axis)
    if c.attr("exclusive", 0):
        total = total - dy
    return [np.flip(total, axis) if backward else total]


def cumulated_product_gradient(
    x: Array, dy: Array, axis: int, before: Array, after: Array, *, reverse: bool, exclusive: bool
) -> tuple[Array, Array]:
    """dX of a running product, and what flows on to the elements before.

    `before` is the product of what precedes this stretch along the axis (seen from the end where the product
    starts), `after` the gradient that reaches its last element from behind.  No division: zeros are exact.
    """
    turn = slice(None, None, -1 if reverse else 1)
    xs, gs = np.moveaxis(x, axis, 0)[turn], np.moveaxis(dy, axis, 0)[turn]
    product, flow = np.moveaxis(before, axis, 0)[0], np.moveaxis(after, axis, 0)[0]
    preceding = [product := product if i == 0 else product * xs[i - 1] for i in range(len(xs))]
    dx = np.empty_like(xs)
    # `flow` is the gradient of the inclusive product up to here, as later elements see it.
    for i in reversed(range(len(xs))):
        own = flow if exclusive else flow + gs[i]
        dx[i] = own * preceding[i]
        flow = own * xs[i] + (gs[i] if exclusive else 0)
    return np.moveaxis(dx[turn], 0, axis), np.expand_dims(flow, axis)


@register("CumProd")
def _cumprod(c: Call) -> Gradients:
    axis = normalise_axis(int(c.operand(1).reshape(())), c.x.ndim)
    first = c.x.take([0], axis=axis)
    reverse, exclusive = bool(c.attr("reverse", 0)), bool(c.attr("exclusive", 0))
    ends = np.ones_like(first), np.zeros_like(first)
    return [cumulated_product_gradient(c.x, c.dy, axis, *ends, reverse=reverse, exclusive=exclusive)[0]]


@register("TopK")
def _top_k(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    axis = normalise_axis(c.attr("axis", -1), c.x.ndim)
    np.put_along_axis(dx, c.result(1).astype(np.int64), c.dy, axis=axis)
    return [dx]
