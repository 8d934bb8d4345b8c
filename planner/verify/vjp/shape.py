"""Operators that only move, repeat or drop elements by their place."""

from __future__ import annotations

import itertools

import numpy as np

from planner.verify.vjp.attributes import Array, integers, normalise_axis, slices_of, string
from planner.verify.vjp.registry import Call, NoVjpError, register, unbroadcast

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


@register("Tile")
def _tile(c: Call) -> Gradients:
    repeats = integers(c.op, c.inputs, 1, "repeats") or ()
    blocks = [n for r, s in zip(repeats, c.x.shape, strict=True) for n in (r, s)]
    return [c.dy.reshape(blocks).sum(axis=tuple(range(0, 2 * c.x.ndim, 2)))]


@register("DepthToSpace", "SpaceToDepth")
def _depth_space(c: Call) -> Gradients:
    n, channels, height, width = c.x.shape
    b = c.attr("blocksize")
    if c.op.type == "SpaceToDepth":
        blocks = c.dy.reshape(n, b, b, channels, height // b, width // b)
        return [blocks.transpose(0, 3, 4, 1, 5, 2).reshape(c.x.shape)]
    inner = channels // (b * b)
    blocks = c.dy.reshape(n, inner, height, b, width, b)
    order = (0, 3, 5, 1, 2, 4) if string(c.attr("mode"), "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    return [blocks.transpose(order).reshape(c.x.shape)]


@register("Trilu")
def _trilu(c: Call) -> Gradients:
    given = c.maybe(1)
    k = 0 if given is None else int(given.reshape(()))
    return [np.triu(c.dy, k) if c.attr("upper", 1) else np.tril(c.dy, k)]


@register("Resize", "Upsample")
def _resize(c: Call) -> Gradients:
    """Nearest neighbour by whole factors: every source was repeated."""
    factors = [o // s if s and o % s == 0 else 0 for o, s in zip(c.y.shape, c.x.shape, strict=True)]
    if string(c.attr("mode"), "nearest") != "nearest" or 0 in factors:
        raise NoVjpError(
            f"operator {c.op.name} ({c.op.type}): only nearest neighbour by whole factors has a "
            f"vector-Jacobian product, not {string(c.attr('mode'), 'nearest')} {c.x.shape} -> {c.y.shape}"
        )
    blocks = [n for f, s in zip(factors, c.x.shape, strict=True) for n in (s, f)]
    return [c.dy.reshape(blocks).sum(axis=tuple(range(1, 2 * c.x.ndim, 2)))]
