"""Meaning of operands and attributes that state axes, slices and windows, for every opset.

Several operators moved these from attributes to operands over time; both forms are read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op

__all__ = ["Array", "Window", "align", "axes_of", "integers", "normalise_axis", "slices_of", "string", "window"]

Array = NDArray[Any]


def string(value: Any, default: str = "") -> str:
    """A string attribute, which some readers leave as bytes."""
    if value is None:
        return default
    return value.decode() if isinstance(value, bytes) else str(value)


def integers(op: Op, inputs: Sequence[Array | None], index: int, attribute: str) -> tuple[int, ...] | None:
    """Integers given as operand `index` or as an attribute; None where neither is given."""
    if index < len(inputs) and (given := inputs[index]) is not None:
        return tuple(int(v) for v in np.asarray(given).reshape(-1))
    value = op.attributes.get(attribute)
    if value is None:
        return None
    return (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)


def normalise_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


def align(op: Op, a: Array, b: Array) -> Array:
    """Operand B of a binary operator as numpy would broadcast it; before opset 7 `axis` aligned its first dimension."""
    axis = op.attributes.get("axis")
    if axis is None or not op.attributes.get("broadcast"):
        return b
    return b.reshape(b.shape + (1,) * (a.ndim - normalise_axis(axis, a.ndim) - b.ndim))


def axes_of(op: Op, inputs: Sequence[Array | None], index: int, rank: int) -> tuple[int, ...] | None:
    """Axes as non-negative numbers; None where none are given."""
    given = integers(op, inputs, index, "axes")
    return None if given is None else tuple(normalise_axis(a, rank) for a in given)


def slices_of(op: Op, inputs: Sequence[Array | None], shape: tuple[int, ...], first: int = 1) -> tuple[slice, ...]:
    """The region a Slice reads; its operands start at `first` (starts, ends, axes, steps)."""
    starts = integers(op, inputs, first, "starts") or ()
    ends = integers(op, inputs, first + 1, "ends") or ()
    axes = axes_of(op, inputs, first + 2, len(shape)) or tuple(range(len(starts)))
    steps = integers(op, inputs, first + 3, "steps") or (1,) * len(starts)
    region = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis]
        lo, hi = (start + size if start < 0 else start), (end + size if end < 0 else end)
        if step > 0:
            region[axis] = slice(min(max(lo, 0), size), min(max(hi, 0), size), step)
        else:
            stop = min(max(hi, -1), size - 1)
            region[axis] = slice(min(max(lo, 0), size - 1), None if stop < 0 else stop, step)
    return tuple(region)


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over the spatial dimensions, as convolutions and pools state it.

    `begin` and `end` are the paddings; `outputs` the number of positions.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    outputs: tuple[int, ...]


def window(op: Op, spatial: Sequence[int], kernel: Sequence[int], outputs: Sequence[int]) -> Window:
    """The window of a convolution or pool over `spatial` sizes that has `outputs` positions.

    auto_pad: SAME pads so that the outputs cover the input at the stride; the odd element goes to the end for
    SAME_UPPER, to the beginning for SAME_LOWER.
    """
    n = len(spatial)
    strides = tuple(op.attributes.get("strides") or (1,) * n)
    dilations = tuple(op.attributes.get("dilations") or (1,) * n)
    pads = tuple(op.attributes.get("pads") or (0,) * (2 * n))
    begin, end = list(pads[:n]), list(pads[n:])
    mode = string(op.attributes.get("auto_pad"), "NOTSET")
    if mode == "VALID":
        begin, end = [0] * n, [0] * n
    elif mode.startswith("SAME"):
        for i in range(n):
            total = max((outputs[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 - spatial[i], 0)
            less, more = total // 2, total - total // 2
            begin[i], end[i] = (less, more) if mode == "SAME_UPPER" else (more, less)
    return Window(tuple(kernel), strides, dilations, tuple(begin), tuple(end), tuple(outputs))
