"""Pools and local response normalisation."""

from __future__ import annotations

import math

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.attributes import window as window_of
from planner.kernels.gradients import Call, register
from planner.operators.convolution.gradient import pad_to_window, padded_sizes, positions

__all__ = ["average_pool_gradient", "lp_gradient", "lp_sum", "neighbours"]

Gradients = list["Array | None"]


@register("MaxPool")
def _max_pool(c: Call) -> Gradients:
    """The first element in kernel order that holds the maximum receives the gradient."""
    spatial = c.x.shape[2:]
    w = window_of(c.op, spatial, c.attr("kernel_shape"), c.dy.shape[2:])
    x = pad_to_window(c.x, w, fill=-math.inf)
    grown = np.zeros(x.shape, dtype=c.dy.dtype)
    free = np.ones(c.dy.shape, dtype=bool)
    for _, where in positions(w):
        region = (slice(None), slice(None), *where)
        hit = free & (x[region] == c.y)
        grown[region] += c.dy * hit
        free &= ~hit
    return [grown[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(w.begin, spatial, strict=True)))]]


def average_pool_gradient(op: Op, dy: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of the operand of `shape`: every position hands equal shares to the elements it counted."""
    spatial = shape[2:]
    w = window_of(op, spatial, op.attributes["kernel_shape"], dy.shape[2:])
    sizes = padded_sizes(spatial, w)
    inside = (slice(None), slice(None), *(slice(b, b + s) for b, s in zip(w.begin, spatial, strict=True)))
    counted = np.zeros((1, 1, *sizes), dtype=dy.dtype)
    if op.attributes.get("count_include_pad", 0):
        ends = (b + s + e for b, s, e in zip(w.begin, spatial, w.end, strict=True))
        counted[(slice(None), slice(None), *(slice(0, e) for e in ends))] = 1
    else:
        counted[inside] = 1
    regions = [(slice(None), slice(None), *where) for _, where in positions(w)]
    share = dy / sum(counted[r] for r in regions)
    grown = np.zeros((*shape[:2], *sizes), dtype=dy.dtype)
    for r in regions:
        grown[r] += share
    return np.asarray(grown[inside])


@register("AveragePool")
def _average_pool(c: Call) -> Gradients:
    return [average_pool_gradient(c.op, c.dy, c.x.shape)]


@register("LpPool")
def _lp_pool(c: Call) -> Gradients:
    """y = (Σ |x|ᵖ)^(1/p) over each window: every element it counts gets dy·x·|x|ᵖ⁻²·y¹⁻ᵖ."""
    spatial, p = c.x.shape[2:], c.attr("p", 2)
    w = window_of(c.op, spatial, c.attr("kernel_shape"), c.dy.shape[2:])
    x = pad_to_window(c.x, w)
    grown = np.zeros(x.shape, dtype=c.dy.dtype)
    for _, where in positions(w):
        region = (slice(None), slice(None), *where)
        grown[region] += lp_gradient(x[region], c.y, c.dy, p)
    return [grown[(slice(None), slice(None), *(slice(b, b + s) for b, s in zip(w.begin, spatial, strict=True)))]]


def lp_gradient(x: Array, y: Array, dy: Array, p: int) -> Array:
    """Gradient of elements x of which y is the p-norm; none where the norm is zero."""
    norm = np.where(y == 0, 1, y)
    return np.asarray(np.where(y == 0, 0, dy * np.sign(x) * (np.abs(x) / norm) ** (p - 1)))


def lp_sum(x: Array, p: int) -> Array:
    """Σ |x|ᵖ over space, in float32 at least."""
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    return np.asarray((np.abs(wide) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True))


@register("GlobalLpPool")
def _global_lp_pool(c: Call) -> Gradients:
    return [lp_gradient(c.x, c.y, c.dy, c.attr("p", 2))]


@register("MaxUnpool")
def _max_unpool(c: Call) -> Gradients:
    """Every element went to the place that its index names, where the last of several stays."""
    places = c.operand(1).reshape(-1)
    order = np.arange(places.size)
    last = np.zeros(c.dy.size, dtype=np.int64)
    last[places] = order
    return [np.where(last[places] == order, c.dy.reshape(-1)[places], 0).reshape(c.x.shape)]


@register("GlobalAveragePool")
def _global_average_pool(c: Call) -> Gradients:
    return [np.broadcast_to(c.dy / math.prod(c.x.shape[2:]), c.x.shape)]


@register("GlobalMaxPool")
def _global_max_pool(c: Call) -> Gradients:
    held = c.x == c.y
    return [c.dy * held / held.sum(axis=tuple(range(2, c.x.ndim)), keepdims=True).astype(c.dy.dtype)]


@register("LRN")
def _lrn(c: Call) -> Gradients:
    """y = x·s^-β with s = k + α/n·Σ x² over n neighbouring channels; the sum's transpose is mirrored."""
    size, alpha = c.attr("size"), c.attr("alpha", 1e-4)
    beta, bias = c.attr("beta", 0.75), c.attr("bias", 1.0)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    s = bias + alpha / size * neighbours(c.x * c.x, before, after)
    through = neighbours(c.dy * c.x * s ** (-beta - 1), after, before)
    return [c.dy * s**-beta - 2 * alpha * beta / size * c.x * through]


def neighbours(x: Array, before: int, after: int) -> Array:
    """Sum over the channels c-before … c+after."""
    channels = x.shape[1]
    padded = np.zeros((x.shape[0], channels + before + after, *x.shape[2:]), dtype=x.dtype)
    padded[:, before : before + channels] = x
    total = np.zeros_like(x)
    for i in range(before + after + 1):
        total += padded[:, i : i + channels]
    return total
