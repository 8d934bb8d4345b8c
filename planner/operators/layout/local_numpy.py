"""Operators that move elements, as numpy says them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, axes_of, integers, normalise_axis, slices_of
from planner.kernels.local import in_numpy

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _reshape(op: Op, inputs: Operands) -> Array | None:
    x, shape = inputs[0], integers(op, inputs, 1, "shape")
    if x is None or shape is None:
        return None
    keep = not op.attributes.get("allowzero")
    return x.reshape([x.shape[i] if s == 0 and keep else s for i, s in enumerate(shape)])


def _flatten(op: Op, inputs: Operands) -> Array | None:
    (x,) = inputs
    if x is None:
        return None
    axis = normalise_axis(op.attributes.get("axis", 1), x.ndim)
    return x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), int(np.prod(x.shape[axis:], dtype=np.int64)))


def _transpose(op: Op, inputs: Operands) -> Array | None:
    (x,) = inputs
    return None if x is None else x.transpose(op.attributes.get("perm") or tuple(reversed(range(x.ndim))))


def _unsqueeze(op: Op, inputs: Operands) -> Array | None:
    x, axes = inputs[0], integers(op, inputs, 1, "axes")
    return None if x is None or axes is None else np.expand_dims(x, axes)


def _squeeze(op: Op, inputs: Operands) -> Array | None:
    x = inputs[0]
    if x is None:
        return None
    return np.asarray(np.squeeze(x, axes_of(op, inputs, 1, x.ndim)))


def _concat(op: Op, inputs: Operands) -> Array | None:
    parts = [x for x in inputs if x is not None]
    return np.concatenate(parts, axis=op.attributes.get("axis", 1))


def _expand(op: Op, inputs: Operands) -> Array | None:
    x, shape = inputs[0], integers(op, inputs, 1, "shape")
    if x is None or shape is None:
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def _slice(op: Op, inputs: Operands) -> Array | None:
    x = inputs[0]
    return None if x is None else x[slices_of(op, inputs, x.shape)]


in_numpy(
    {
        "Concat": _concat,
        "Expand": _expand,
        "Flatten": _flatten,
        "Reshape": _reshape,
        "Slice": _slice,
        "Squeeze": _squeeze,
        "Transpose": _transpose,
        "Unsqueeze": _unsqueeze,
    }
)
