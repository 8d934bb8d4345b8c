"""Convolutions by columns (im2col) and BLAS, a few samples at a time to bound memory.

A convolution with weights w [M, C/g, k…] maps the columns of x [N, g, C/g·K, P] (K kernel elements, P output
positions) by w [g, M/g, C/g·K]; its two gradients are the transposed products.  A transposed convolution is the
gradient of a convolution with respect to its input, so its gradients are a convolution and a weight gradient.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import as_strided

from planner.ir import Op
from planner.kernels.attributes import Array, Window, string, window
from planner.kernels.gradients import Call, register

__all__ = [
    "conv_forward",
    "conv_input_gradient",
    "conv_weight_gradient",
    "im2col",
    "pad_to_window",
    "positions",
    "transposed_window",
]

Gradients = list["Array | None"]

_COLUMN_BYTES = 64 * 2**20  # buffer of columns held at a time


def positions(w: Window) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """For every kernel element, the slices of the padded input that it reads at all output positions."""
    for offset in itertools.product(*map(range, w.kernel)):
        yield (
            offset,
            tuple(
                slice(o * d, o * d + (n - 1) * s + 1, s)
                for o, d, s, n in zip(offset, w.dilations, w.strides, w.outputs, strict=True)
            ),
        )


def padded_sizes(spatial: tuple[int, ...], w: Window) -> tuple[int, ...]:
    """Spatial sizes that the window touches, or more where the input is larger."""
    return tuple(
        max((n - 1) * s + (k - 1) * d + 1, b + size)
        for n, s, k, d, b, size in zip(w.outputs, w.strides, w.kernel, w.dilations, w.begin, spatial, strict=True)
    )


def pad_to_window(x: Array, w: Window, fill: float = 0.0) -> Array:
    """x [N, C, …] with the window's padding around it."""
    spatial = x.shape[2:]
    sizes = padded_sizes(spatial, w)
    if sizes == spatial and not any(w.begin):
        return x
    out = np.full((*x.shape[:2], *sizes), fill, dtype=x.dtype)
    out[_inside(spatial, w)] = x
    return out


def _inside(spatial: tuple[int, ...], w: Window) -> tuple[slice, ...]:
    return (slice(None), slice(None), *(slice(b, b + s) for b, s in zip(w.begin, spatial, strict=True)))


def im2col(x: Array, w: Window, groups: int) -> Array:
    """Columns [N, g, C/g·K, P] of x [N, C, …]."""
    x = np.ascontiguousarray(pad_to_window(x, w))
    n, channels = x.shape[:2]
    steps = x.strides[2:]
    view = as_strided(
        x,
        (n, channels, *w.kernel, *w.outputs),
        (
            *x.strides[:2],
            *(s * d for s, d in zip(steps, w.dilations, strict=True)),
            *(s * d for s, d in zip(steps, w.strides, strict=True)),
        ),
        writeable=False,
    )
    return view.reshape(n, groups, channels // groups * math.prod(w.kernel), math.prod(w.outputs))


def _chunks(n: int, sample_bytes: int) -> Iterator[slice]:
    step = max(1, _COLUMN_BYTES // max(1, sample_bytes))
    return (slice(i, min(i + step, n)) for i in range(0, n, step))


def _sample_bytes(channels: int, w: Window, item: int) -> int:
    return channels * math.prod(w.kernel) * math.prod(w.outputs) * item


def conv_forward(x: Array, weight: Array, w: Window, groups: int) -> Array:
    """x [N, C, …], weight [M, C/g, k…] → [N, M, positions…]."""
    out = np.empty((x.shape[0], weight.shape[0], *w.outputs), dtype=x.dtype)
    matrix = weight.reshape(groups, weight.shape[0] // groups, -1)
    for part in _chunks(x.shape[0], _sample_bytes(x.shape[1], w, x.itemsize)):
        out[part] = (matrix @ im2col(x[part], w, groups)).reshape(out[part].shape)
    return out


def conv_input_gradient(dy: Array, weight: Array, w: Window, groups: int, spatial: tuple[int, ...]) -> Array:
    """dy [N, M, positions…] → gradient of the input [N, C, spatial…]."""
    n, channels = dy.shape[0], weight.shape[1] * groups
    sizes = padded_sizes(spatial, w)
    out = np.empty((n, channels, *spatial), dtype=dy.dtype)
    matrix = np.swapaxes(weight.reshape(groups, weight.shape[0] // groups, -1), 1, 2)
    for part in _chunks(n, _sample_bytes(channels, w, dy.itemsize)):
        piece = np.ascontiguousarray(dy[part])
        count = piece.shape[0]
        columns = matrix @ piece.reshape(count, groups, -1, math.prod(w.outputs))
        columns = columns.reshape(count, channels, *w.kernel, *w.outputs)
        if math.prod(w.kernel) == 1 and set(w.strides) <= {1} and sizes == spatial:
            out[part] = columns.reshape(count, channels, *spatial)
            continue
        grown = np.zeros((count, channels, *sizes), dtype=dy.dtype)
        for offset, where in positions(w):
            grown[(slice(None), slice(None), *where)] += columns[(slice(None), slice(None), *offset)]
        out[part] = grown[_inside(spatial, w)]
    return out


def conv_weight_gradient(x: Array, dy: Array, w: Window, groups: int, weight_shape: tuple[int, ...]) -> Array:
    """x [N, C, …], dy [N, M, positions…] → gradient of the weights [M, C/g, k…]."""
    outputs = weight_shape[0]
    total = np.zeros((groups, outputs // groups, math.prod(weight_shape[1:])), dtype=dy.dtype)
    for part in _chunks(x.shape[0], _sample_bytes(x.shape[1], w, x.itemsize)):
        columns = im2col(x[part], w, groups)
        piece = np.ascontiguousarray(dy[part]).reshape(columns.shape[0], groups, outputs // groups, -1)
        for one, columns_of_one in zip(piece, columns, strict=True):
            total += one @ np.swapaxes(columns_of_one, 1, 2)
    return total.reshape(weight_shape)


@register("Conv")
def _conv(c: Call) -> Gradients:
    weight = c.operand(1)
    groups = c.attr("group", 1)
    spatial = c.x.shape[2:]
    w = window(c.op, spatial, weight.shape[2:], c.dy.shape[2:])
    return [
        conv_input_gradient(c.dy, weight, w, groups, spatial) if c.wants(0) else None,
        conv_weight_gradient(c.x, c.dy, w, groups, weight.shape) if c.wants(1) else None,
        _channel_sum(c.dy) if c.wants(2) else None,
    ]


@register("ConvTranspose")
def _conv_transpose(c: Call) -> Gradients:
    weight = c.operand(1)
    groups = c.attr("group", 1)
    w = transposed_window(c.op, c.x.shape[2:], weight.shape[2:], c.dy.shape[2:])
    dy = c.dy
    # Positions the window never reaches (output padding beyond it) carry no gradient.
    return [
        conv_forward(dy, weight, w, groups) if c.wants(0) else None,
        conv_weight_gradient(dy, c.x, w, groups, weight.shape) if c.wants(1) else None,
        _channel_sum(dy) if c.wants(2) else None,
    ]


def transposed_window(op: Op, inputs: tuple[int, ...], kernel: tuple[int, ...], outputs: tuple[int, ...]) -> Window:
    """The window of the convolution whose input gradient this is: it slides over the *results*."""
    n = len(inputs)
    strides = tuple(op.attributes.get("strides") or (1,) * n)
    dilations = tuple(op.attributes.get("dilations") or (1,) * n)
    extra = tuple(op.attributes.get("output_padding") or (0,) * n)
    mode = string(op.attributes.get("auto_pad"), "NOTSET")
    if op.attributes.get("output_shape") or mode.startswith("SAME"):
        begin = []
        for i in range(n):
            total = strides[i] * (inputs[i] - 1) + extra[i] + (kernel[i] - 1) * dilations[i] + 1 - outputs[i]
            total = max(total, 0)
            begin.append(total // 2 if mode == "SAME_UPPER" else total - total // 2)
    elif mode == "VALID":
        begin = [0] * n
    else:
        begin = list((op.attributes.get("pads") or (0,) * 2 * n)[:n])
    return Window(tuple(kernel), strides, dilations, tuple(begin), (0,) * n, tuple(inputs))


def _channel_sum(dy: Array) -> Array:
    return np.asarray(dy.sum(axis=(0, *range(2, dy.ndim))))
