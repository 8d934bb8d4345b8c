"""Operators that only move elements.

Transposed activations are made contiguous, as the cost model has it; a transposed weight stays a view, which matrix
products read as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []

_TILES_BY_OPERAND = 6  # operator set since which Tile is told of all dimensions at once


@operator("Flatten", "Reshape", "Squeeze", "Unsqueeze")
def _reshape(c: Call) -> Tensor:
    return c.x.reshape(c.shape())


@operator("Transpose")
def _transpose(c: Call) -> Tensor:
    perm = c.attr("perm") or tuple(reversed(range(c.x.ndim)))
    y = c.x.permute(tuple(perm))
    return y


@operator("Expand")
def _expand(c: Call) -> Tensor:
    return c.x.expand(c.shape()).contiguous()


@operator("Split")
def _split(c: Call) -> Sequence[Tensor]:
    axis = c.axis(0)
    sizes = [c.shape(j)[axis] for j in range(len(c.op.outputs))]
    return torch.split(c.x, sizes, dim=axis)


@operator("Concat")
def _concat(c: Call) -> Tensor:
    return torch.cat([x for x in c.inputs if x is not None], dim=c.axis(0))


@operator("Slice")
def _slice(c: Call) -> Tensor | None:
    """Steps back read a reversed range forwards, and turn it round."""
    starts, ends = c.integers(1, "starts"), c.integers(2, "ends")
    if starts is None or ends is None:
        return None
    axes = c.integers(3, "axes") or tuple(range(len(starts)))
    steps = c.integers(4) or (1,) * len(starts)
    y = c.x
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= c.x.ndim
        places = range(c.x.shape[axis])[slice(*_bounds(start, end, step, c.x.shape[axis]), step)]
        if step > 0:
            y = y[(*(slice(None),) * axis, slice(places.start, places.stop, step))]
        else:
            first = places[-1] if len(places) else 0
            kept = y[(*(slice(None),) * axis, slice(first, first + len(places) * -step, -step))]
            y = kept.narrow(axis, 0, len(places)).flip(axis)
    return y.contiguous()


def _bounds(start: int, end: int, step: int, size: int) -> tuple[int, int | None]:
    """As Python has them; an end before the first element is none."""
    start, end = start + size if start < 0 else start, end + size if end < 0 else end
    if step > 0:
        return min(max(start, 0), size), min(max(end, 0), size)
    return min(max(start, 0), size - 1), None if end < 0 else min(end, size - 1)


@operator("Pad")
def _pad(c: Call) -> Tensor | None:
    """Other modes than the constant one read each dimension at places that are known."""
    pads, mode, rank = c.integers(1, "pads"), c.attr("mode", "constant"), c.x.ndim
    if pads is None:
        return None
    axes = [a % rank for a in c.integers(3) or range(rank)]
    count = len(pads) // 2
    widths = {a: (pads[i], pads[i + count]) for i, a in enumerate(axes)}
    if mode == "constant":
        flat = [w for d in reversed(range(rank)) for w in widths.get(d, (0, 0))]
        value = c.number(2, "value")
        if isinstance(value, Tensor):
            # A value that is computed: added where the padding is.
            inside = functional.pad(torch.ones_like(c.x, dtype=torch.bool), flat, value=False)
            return torch.where(inside, functional.pad(c.x, flat), value)
        return functional.pad(c.x, flat, value=value or 0)
    y = c.x
    for axis, (before, after) in widths.items():
        if before or after:
            places = [_place(i, c.x.shape[axis], mode) for i in range(-before, c.x.shape[axis] + after)]
            y = y.index_select(axis, torch.tensor(places, device=y.device))
    return y


def _place(i: int, size: int, mode: str) -> int:
    """Which element stands at a place inside or beside a dimension."""
    if mode == "edge":
        return min(max(i, 0), size - 1)
    if mode == "wrap" or size == 1:
        return i % size
    turn = i % (2 * size - 2)
    return turn if turn < size else 2 * size - 2 - turn


@operator("Tile")
def _tile(c: Call) -> Tensor | None:
    repeats = c.integers(1) if c.op.opset >= _TILES_BY_OPERAND or c.op.opset <= 0 else None
    return None if repeats is None else c.x.repeat(repeats)


@operator("Trilu")
def _trilu(c: Call) -> Tensor:
    diagonal = (c.integers(1) or (0,))[0]
    return torch.triu(c.x, diagonal) if c.attr("upper", 1) else torch.tril(c.x, diagonal)


@operator("DepthToSpace", "SpaceToDepth")
def _blocks(c: Call) -> Tensor:
    """Blocks of elements from, or to, channels: their minor part, or their major one."""
    n, channels, height, width = c.x.shape
    b = int(c.attr("blocksize"))
    if c.op.type == "SpaceToDepth":
        apart = c.x.reshape(n, channels, height // b, b, width // b, b)
        order = (0, 1, 3, 5, 2, 4) if c.attr("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
        return apart.permute(order).reshape(n, channels * b * b, height // b, width // b)
    deep = channels // (b * b)
    if c.attr("mode", "DCR") == "DCR":
        apart = c.x.reshape(n, b, b, deep, height, width).permute(0, 3, 4, 1, 5, 2)
    else:
        apart = c.x.reshape(n, deep, b, b, height, width).permute(0, 1, 4, 2, 5, 3)
    return apart.reshape(n, deep, height * b, width * b)


@operator("Shape", "Size")
def _shape(c: Call) -> Tensor:
    """Of an operand that is whole."""
    shape = tuple(c.x.shape)
    whole: int | tuple[int, ...] = (
        math.prod(shape) if c.op.type == "Size" else shape[c.attr("start", 0) : c.attr("end", len(shape))]
    )
    return torch.tensor(whole, dtype=torch.int64, device=c.x.device)
