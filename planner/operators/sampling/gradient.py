"""Operators that read features at computed places, and those that fold or slide along one sequence.

A feature at a place between elements is interpolated from the corners of its cell; corners outside count as zero.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.kernels.attributes import Array, Window, integers, string
from planner.kernels.gradients import Call, NoVjpError, register
from planner.operators.convolution.gradient import im2col
from planner.operators.elementwise.gradient import sigmoid

__all__ = ["Corner", "affine_base", "affine_gradient", "corners"]

Gradients = list["Array | None"]


@dataclass(frozen=True, slots=True)
class _Line:
    """What is read along one dimension, per place: the element, its weight, and the weight's derivative."""

    element: NDArray[np.int64]
    weight: Array
    slope: Array


@dataclass(frozen=True, slots=True)
class Corner:
    """Flat element and weight, per place; `lines`: what they are made of, dimension by dimension."""

    element: NDArray[np.int64]
    weight: Array
    lines: tuple[_Line, ...]

    def slopes(self) -> list[Array]:
        """The weight's derivative by each coordinate."""
        others = ([e for k, e in enumerate(self.lines) if k != d] for d in range(len(self.lines)))
        return [math.prod((e.weight for e in rest), start=x.slope) for x, rest in zip(self.lines, others, strict=True)]


def corners(at: Array, sizes: Sequence[int]) -> Iterator[Corner]:
    """Corners of the cells around places `at` [N, Q, D], given in elements."""
    lines = []
    for d, n in enumerate(sizes):
        low = np.floor(at[..., d])
        part, first = at[..., d] - low, np.clip(low, -2, n).astype(np.int64)  # beyond, all corners are outside
        lines.append([_line(first, n, 1 - part, -1.0), _line(first + 1, n, part, 1.0)])
    return _crossing(lines, sizes)


def cubic_corners(at: Array, sizes: Sequence[int], padding: str, *, aligned: bool) -> Iterator[Corner]:
    """The four elements along each dimension by which a cubic convolution interpolates (Keys 1981, a = −3/4); of those
    outside, `padding` says what is read."""
    lines = []
    for d, n in enumerate(sizes):
        low, taps = np.floor(at[..., d]), []
        for k in range(-1, 3):
            index, (weight, slope) = low + k, _keys(at[..., d] - low - k)
            if padding == "reflection":
                index = reflected(index, np.array(n), aligned=aligned)[0]
            if padding != "zeros":
                index = np.clip(index, 0, n - 1)
            taps.append(_line(np.clip(index, -1, n).astype(np.int64), n, weight, slope))
        lines.append(taps)
    return _crossing(lines, sizes)


def _line(index: NDArray[np.int64], n: int, weight: Array, slope: Array | float) -> _Line:
    """Elements along a dimension of size n; those outside count as zero."""
    inside = (index >= 0) & (index < n)
    return _Line(np.clip(index, 0, n - 1), inside * weight, inside * slope)


def _crossing(lines: Sequence[Sequence[_Line]], sizes: Sequence[int]) -> Iterator[Corner]:
    """All that is read, of what is read along each dimension."""
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    for taps in itertools.product(*lines):
        element = sum((x.element * s for x, s in zip(taps[1:], strides[1:], strict=True)), taps[0].element * strides[0])
        yield Corner(element, math.prod((x.weight for x in taps[1:]), start=taps[0].weight), taps)


def _keys(t: Array) -> tuple[Array, Array]:
    """The kernel of cubic convolution at a distance, and its derivative."""
    a, x = -0.75, np.abs(t)
    near, far = x <= 1, (x > 1) & (x < 2)
    weight = near * (((a + 2) * x - (a + 3)) * x * x + 1) + far * (((a * x - 5 * a) * x + 8 * a) * x - 4 * a)
    slope = near * (3 * (a + 2) * x - 2 * (a + 3)) * x + far * ((3 * a * x - 10 * a) * x + 8 * a)
    return weight, slope * np.sign(t)


def reflected(at: Array, sizes: Array, *, aligned: bool) -> tuple[Array, Array]:
    """Places that lie outside, reflected at the edges: at the middle of the outermost elements, or behind them; and
    whether the direction is turned (−1) or not (1)."""
    low = 0.0 if aligned else -0.5
    span = np.maximum((sizes - 1.0) if aligned else sizes * 1.0, 1e-30)
    away = at - low
    flips, rest = np.floor(np.abs(away) / span), np.mod(np.abs(away), span)
    even = flips % 2 == 0
    found = np.where(even, rest, span - rest) + low
    return np.where(sizes == 1, 0.0, found) if aligned else found, np.where(even, 1.0, -1.0) * np.sign(away)


def _read(x: Array, corner: Corner) -> Array:
    """x [N, C, …] at the corner of every place: [N, C, Q]."""
    flat = x.reshape(*x.shape[:2], -1)
    return np.take_along_axis(flat, corner.element[:, None, :], axis=2)


def _interpolate(x: Array, at: Array) -> Array:
    return np.asarray(sum(_read(x, c) * c.weight[:, None] for c in corners(at, x.shape[2:])))


def _interpolate_gradient(x: Array, at: Array, near: Iterator[Corner], g: Array) -> tuple[Array, Array]:
    """Gradients of features and places from that of the features [N, C, Q] that are interpolated from those near by."""
    dx = np.zeros((*x.shape[:2], math.prod(x.shape[2:])), dtype=g.dtype)
    d_at = np.zeros(at.shape, dtype=g.dtype)
    batch, channel = np.arange(x.shape[0])[:, None, None], np.arange(x.shape[1])[:, None]
    for c in near:
        np.add.at(dx, (batch, channel, c.element[:, None, :]), g * c.weight[:, None])
        met = (g * _read(x, c)).sum(axis=1)
        for d, slope in enumerate(c.slopes()):
            d_at[..., d] += met * slope
    return dx.reshape(x.shape), d_at


@register("GridSample")
def _grid_sample(c: Call) -> Gradients:
    """Places are given from −1 to 1, the last dimension first."""
    x, grid = c.x, c.operand(1)
    mode, padding = string(c.attr("mode"), "linear"), string(c.attr("padding_mode"), "zeros")
    aligned = bool(c.attr("align_corners", 0))
    sizes = np.array(x.shape[2:])
    places = grid.reshape(grid.shape[0], -1, grid.shape[-1])[..., ::-1]
    slope = np.broadcast_to(((sizes - 1) if aligned else sizes) / 2, places.shape)
    at = (places + 1) * slope - (0.0 if aligned else 0.5)
    if mode in ("cubic", "bicubic"):
        near = cubic_corners(at, x.shape[2:], padding, aligned=aligned)
    else:
        if padding == "reflection":
            at, turned = reflected(at, sizes, aligned=aligned)
            slope = slope * turned
        if padding != "zeros":
            slope = slope * ((at >= 0) & (at <= sizes - 1))
            at = np.clip(at, 0, sizes - 1)
        if mode == "nearest":
            at, slope = np.rint(at), np.zeros(())
        near = corners(at, x.shape[2:])
    g = c.dy.reshape(*c.dy.shape[:2], -1)
    dx, d_at = _interpolate_gradient(x, at, near, g)
    return [dx, (d_at * slope)[..., ::-1].reshape(grid.shape)]


@register("RoiAlign")
def _roi_align(c: Call) -> Gradients:
    """Every bin of a region averages samples of its image; those more than one element outside count as zero."""
    if string(c.attr("mode"), "avg") != "avg":
        raise NoVjpError(f"operator {c.op.name} (RoiAlign): only averages have a vector-Jacobian product")
    x, regions, images = c.x, c.operand(1), c.operand(2)
    aligned = string(c.attr("coordinate_transformation_mode"), "half_pixel" if c.op.opset >= 16 else "") == "half_pixel"
    sizes = np.array(x.shape[2:])
    bins = np.array(c.dy.shape[2:])
    dx = np.zeros(x.shape, dtype=c.dy.dtype)
    for r, image in enumerate(images):
        x0, y0, x1, y1 = regions[r, :4] * c.attr("spatial_scale", 1.0) - (0.5 if aligned else 0.0)
        start, extent = np.array([y0, x0]), np.array([y1 - y0, x1 - x0])
        each = (extent if aligned else np.maximum(extent, 1.0)) / bins
        ratio = int(c.attr("sampling_ratio", 0))
        samples = np.array([ratio] * 2) if ratio > 0 else np.ceil(each).astype(np.int64)
        lines = [s + (np.arange(b * n) + 0.5) * e / n for s, b, n, e in zip(start, bins, samples, each, strict=True)]
        at = np.stack(np.meshgrid(*lines, indexing="ij"), axis=-1)
        held = np.all((at >= -1) & (at <= sizes), axis=-1)
        shares = np.repeat(np.repeat(c.dy[r], samples[0], axis=1), samples[1], axis=2) / max(samples.prod(), 1)
        at = np.clip(at, 0, sizes - 1).reshape(1, -1, 2)
        g = (shares * held).reshape(1, x.shape[1], -1)
        dx[image] += _interpolate_gradient(x[image : image + 1], at, corners(at, x.shape[2:]), g)[0][0]
    return [dx]


@register("DeformConv")
def _deform_conv(c: Call) -> Gradients:
    """The columns of a convolution, each element of the kernel read at its own displaced place."""
    x, weight, offset, mask = c.x, c.operand(1), c.operand(2), c.maybe(4)
    n, channels, groups, parts = *x.shape[:2], c.attr("group", 1), c.attr("offset_group", 1)
    kernel, out = weight.shape[2:], c.dy.shape[2:]
    rank, taps, count = len(kernel), math.prod(kernel), math.prod(out)
    strides, dilations = c.attr("strides") or (1,) * rank, c.attr("dilations") or (1,) * rank
    begin = (c.attr("pads") or (0,) * 2 * rank)[:rank]
    first = np.stack(np.meshgrid(*(np.arange(o) * s - b for o, s, b in zip(out, strides, begin, strict=True)),
                                 indexing="ij"), axis=-1)  # fmt: skip
    moved = offset.reshape(n, parts, taps, rank, count)
    scaled = np.ones((n, parts, taps, count)) if mask is None else mask.reshape(n, parts, taps, count)
    g = c.dy.reshape(n, groups, -1, count)
    d_columns = np.einsum("gok,ngop->ngkp", weight.reshape(groups, g.shape[2], -1), g).reshape(n, channels, taps, count)
    read = np.empty((n, channels, taps, count), dtype=c.dy.dtype)
    dx, d_offset = np.zeros(x.shape, dtype=c.dy.dtype), np.empty(moved.shape, dtype=c.dy.dtype)
    d_mask = np.empty((n, parts, taps, count), dtype=c.dy.dtype)
    for q, t in itertools.product(range(parts), range(taps)):
        mine = slice(q * channels // parts, (q + 1) * channels // parts)
        place = first.reshape(count, rank) + np.array(np.unravel_index(t, kernel)) * np.array(dilations)
        at = place + np.swapaxes(moved[:, q, t], 1, 2)
        sampled = _interpolate(x[:, mine], at)
        read[:, mine, t] = sampled * scaled[:, q, t, None]
        d_mask[:, q, t] = (d_columns[:, mine, t] * sampled).sum(axis=1)
        near = corners(at, x.shape[2:])
        share, d_at = _interpolate_gradient(x[:, mine], at, near, d_columns[:, mine, t] * scaled[:, q, t, None])
        dx[:, mine] += share
        d_offset[:, q, t] = np.swapaxes(d_at, 1, 2)
    d_weight = np.einsum("ngop,ngkp->gok", g, read.reshape(n, groups, -1, count)).reshape(weight.shape)
    bias = c.dy.sum(axis=(0, *range(2, c.dy.ndim)))
    return [dx, d_weight, d_offset.reshape(offset.shape), bias, None if mask is None else d_mask.reshape(mask.shape)]


@register("Col2Im")
def _col2im(c: Call) -> Gradients:
    """The columns of dY, as a convolution would read them."""
    block, rank = integers(c.op, c.inputs, 2, "block_shape") or (), c.y.ndim - 2
    strides, dilations = c.attr("strides") or (1,) * rank, c.attr("dilations") or (1,) * rank
    pads = c.attr("pads") or (0,) * 2 * rank
    counts = tuple(
        (size + pads[d] + pads[d + rank] - (block[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d, size in enumerate(c.y.shape[2:])
    )
    w = Window(block, tuple(strides), tuple(dilations), tuple(pads[:rank]), tuple(pads[rank:]), counts)
    return [im2col(c.dy, w, 1).reshape(c.x.shape)]


@register("CausalConvWithState")
def _causal_conv(c: Call) -> Gradients:
    """y_t = f(b + Σ_k w_k·x_{t−K+1+k}) with the past before x_0; the present state is the end of past and operand."""
    x, weight, past = c.x, c.operand(1), c.maybe(3)
    steps, kernel = c.y.shape[2], weight.shape[2]
    before = np.zeros((*x.shape[:2], kernel - 1), dtype=x.dtype) if past is None else past
    line = np.concatenate([before, x], axis=2)
    g = c.dy
    if string(c.attr("activation"), "none") in ("silu", "swish"):
        z = sum(weight[:, 0, k, None] * line[:, :, k : k + steps] for k in range(kernel))
        z = np.asarray(z if (bias := c.maybe(2)) is None else z + bias[:, None])
        s = sigmoid(z)
        g = g * s * (1 + z * (1 - s))
    d_line = np.zeros_like(line)
    d_weight = np.zeros_like(weight)
    for k in range(kernel):
        d_line[:, :, k : k + steps] += g * weight[:, 0, k, None]
        d_weight[:, 0, k] = (g * line[:, :, k : k + steps]).sum(axis=(0, 2))
    if len(c.outputs) > 1 and c.outputs[1] is not None and kernel > 1:
        d_line[:, :, -(kernel - 1) :] += c.gradient(1)
    known = before.shape[2]
    return [d_line[:, :, known:], d_weight, g.sum(axis=(0, 2)), d_line[:, :, :known]]


def affine_base(image: Sequence[int], *, align: bool) -> Array:
    """The places of all elements of an image from −1 to 1, the last dimension first, and a one."""
    lines = [np.linspace(-1, 1, n) if align else (2 * np.arange(n) + 1) / n - 1 for n in image]
    places = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1)
    return np.concatenate([places, np.ones((*image, 1))], axis=-1)


def affine_gradient(base: Array, dy: Array) -> Array:
    """Gradient of the maps θ of grids θ·base."""
    g = dy.reshape(dy.shape[0], -1, dy.shape[-1])
    return np.asarray(np.swapaxes(g, 1, 2) @ base.reshape(-1, base.shape[-1]))


@register("AffineGrid")
def _affine_grid(c: Call) -> Gradients:
    return [affine_gradient(affine_base(c.dy.shape[1:-1], align=bool(c.attr("align_corners", 0))), c.dy)]
