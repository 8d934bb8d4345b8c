"""Operators that only move, repeat or drop elements by their place."""

from __future__ import annotations

import itertools

import numpy as np

from planner.kernels.attributes import Array, integers, normalise_axis, slices_of, string
from planner.kernels.gradients import Call, register, unbroadcast

__all__ = ["slice_gradient"]

Gradients = list["Array | None"]


@register("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _reshape(c: Call) -> Gradients:
    return [c.dy.reshape(c.x.shape)]


@register("Transpose")
def _transpose(c: Call) -> Gradients:
    perm = c.attr("perm")
    return [c.dy.transpose(np.argsort(perm) if perm else None)]


@register("Expand")
def _expand(c: Call) -> Gradients:
    return [unbroadcast(c.dy, c.x.shape)]


@register("Concat")
def _concat(c: Call) -> Gradients:
    parts = [x for x in c.inputs if x is not None]
    axis = c.attr("axis", 1)
    cuts = list(itertools.accumulate(x.shape[axis] for x in parts))[:-1]
    pieces = iter(np.split(c.dy, cuts, axis=axis))
    return [None if x is None else next(pieces) for x in c.inputs]


@register("Split")
def _split(c: Call) -> Gradients:
    return [np.concatenate([c.gradient(i) for i in range(len(c.outputs))], axis=c.attr("axis", 0))]


def slice_gradient(dy: Array, region: tuple[slice, ...], shape: tuple[int, ...]) -> Array:
    """dy put back where it was read from, zero elsewhere."""
    dx = np.zeros(shape, dtype=dy.dtype)
    dx[region] = dy
    return dx


@register("Slice")
def _slice(c: Call) -> Gradients:
    return [slice_gradient(c.dy, slices_of(c.op, c.inputs, c.x.shape), c.x.shape)]


@register("Pad")
def _pad(c: Call) -> Gradients:
    """The numbers of the elements are padded the same way: each result then knows its source, or has none."""
    rank = c.x.ndim
    given = integers(c.op, c.inputs, 1, "pads") or integers(c.op, c.inputs, 1, "paddings") or ()
    axes = [normalise_axis(a, rank) for a in integers(c.op, c.inputs, 3, "axes") or range(rank)]
    before, after = [0] * rank, [0] * rank
    for i, a in enumerate(axes):
        before[a], after[a] = given[i], given[i + len(axes)]
    mode = string(c.attr("mode"), "constant")
    source = np.arange(c.x.size).reshape(c.x.shape)
    crop = tuple(slice(max(-b, 0), s - max(-a, 0)) for b, a, s in zip(before, after, c.x.shape, strict=True))
    widths = [(max(b, 0), max(a, 0)) for b, a in zip(before, after, strict=True)]
    if mode == "constant":
        source = np.pad(source[crop], widths, constant_values=-1)
    else:
        modes = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
        source = np.pad(source[crop], widths, mode=modes[mode])  # type: ignore[call-overload]  # one overload per mode
    inside = source >= 0
    dx = np.zeros(c.x.size, dtype=c.dy.dtype)
    np.add.at(dx, source[inside], c.dy[inside])
    return [dx.reshape(c.x.shape)]


@register("CenterCropPad")
def _center_crop_pad(c: Call) -> Gradients:
    """What was cropped gets zeros, what was padded is dropped; the odd element lies at the end."""
    dx = np.zeros_like(c.x)
    ours, theirs = [], []
    for size, target in zip(c.x.shape, c.dy.shape, strict=True):
        start, length = abs(size - target) // 2, min(size, target)
        inner, whole = slice(start, start + length), slice(0, length)
        ours.append(inner if size > target else whole)
        theirs.append(whole if size > target else inner)
    dx[tuple(ours)] = c.dy[tuple(theirs)]
    return [dx]


@register("ReverseSequence")
def _reverse_sequence(c: Call) -> Gradients:
    """To reverse the first steps once more undoes it."""
    batch, time = c.attr("batch_axis", 1), c.attr("time_axis", 0)
    steps = np.arange(c.x.shape[time])
    lengths = c.operand(1)[:, None]
    order = np.where(steps < lengths, lengths - 1 - steps, steps)  # batch element → place of every step
    if batch > time:
        order = order.T
    order = np.expand_dims(order, [i for i in range(c.x.ndim) if i not in (batch, time)])
    return [np.take_along_axis(c.dy, order, axis=time)]


@register("Tile")
def _tile(c: Call) -> Gradients:
    repeats = integers(c.op, c.inputs, 1, "repeats") or ()
    blocks = [n for r, s in zip(repeats, c.x.shape, strict=True) for n in (r, s)]
    return [c.dy.reshape(blocks).sum(axis=tuple(range(0, 2 * c.x.ndim, 2)))]


@register("DepthToSpace", "SpaceToDepth")
def _depth_space(c: Call) -> Gradients:
    """Each is the other's inverse; blocks are the channels' major part in mode DCR, their minor part in mode CRD."""
    b = c.attr("blocksize")
    deep = c.x.shape if c.op.type == "DepthToSpace" else c.y.shape
    n, channels, height, width = deep[0], deep[1] // (b * b), *deep[2:]
    if string(c.attr("mode"), "DCR") == "DCR":
        split, order = (n, b, b, channels, height, width), (0, 3, 4, 1, 5, 2)  # to n c h p w q
    else:
        split, order = (n, channels, b, b, height, width), (0, 1, 4, 2, 5, 3)
    if c.op.type == "SpaceToDepth":
        return [c.dy.reshape(split).transpose(order).reshape(c.x.shape)]
    blocks = c.dy.reshape(n, channels, height, b, width, b)
    return [blocks.transpose(np.argsort(order)).reshape(c.x.shape)]


@register("Trilu")
def _trilu(c: Call) -> Gradients:
    given = c.maybe(1)
    k = 0 if given is None else int(given.reshape(()))
    return [np.triu(c.dy, k) if c.attr("upper", 1) else np.tril(c.dy, k)]
