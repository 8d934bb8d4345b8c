"""Reductions, cumulative sums and the largest elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.verify.vjp.attributes import Array, axes_of, normalise_axis
from planner.verify.vjp.registry import Call, register

__all__: list[str] = []

Gradients = list["Array | None"]


def _reduced(c: Call) -> tuple[tuple[int, ...], Array, Array]:
    """The axes, and the result and its gradient with the reduced dimensions kept as one."""
    axes = axes_of(c.op, c.inputs, 1, c.x.ndim)
    if not axes:
        axes = () if c.attr("noop_with_empty_axes", 0) else tuple(range(c.x.ndim))
    kept = tuple(1 if i in axes else s for i, s in enumerate(c.x.shape))
    return axes, c.y.reshape(kept), c.dy.reshape(kept)


def _reduction(kind: str, product: Callable[[Array, Array, Array, tuple[int, ...]], Any]) -> None:
    def gradients(c: Call) -> Gradients:
        axes, y, dy = _reduced(c)
        return [np.broadcast_to(product(c.x, y, dy, axes), c.x.shape)]

    register(kind)(gradients)


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
_reduction("ReduceProd", lambda x, y, dy, axes: dy * y / x)


@register("CumSum")
def _cumsum(c: Call) -> Gradients:
    """The transpose of a running sum is the running sum from the other end."""
    axis = int(c.operand(1).reshape(()))
    backward = not c.attr("reverse", 0)
    dy = np.flip(c.dy, axis) if backward else c.dy
    total = np.cumsum(dy, axis=axis)
    if c.attr("exclusive", 0):
        total = total - dy
    return [np.flip(total, axis) if backward else total]


@register("TopK")
def _top_k(c: Call) -> Gradients:
    dx = np.zeros_like(c.x)
    axis = normalise_axis(c.attr("axis", -1), c.x.ndim)
    np.put_along_axis(dx, c.result(1).astype(np.int64), c.dy, axis=axis)
    return [dx]
