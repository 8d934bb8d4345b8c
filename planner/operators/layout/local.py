"""Operators that move, resample, reduce or count elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, integers, normalise_axis, string
from planner.kernels.local import in_double

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _split(op: Op, inputs: Operands) -> Results | None:
    x, lengths = inputs[0], integers(op, inputs, 1, "split")
    if x is None:
        return None
    axis = normalise_axis(op.attributes.get("axis", 0), x.ndim)
    if lengths is None:
        each = -(-x.shape[axis] // len(op.outputs))
        cuts = [each * i for i in range(1, len(op.outputs))]
    else:
        cuts = np.cumsum(lengths)[:-1].tolist()
    return np.split(x, cuts, axis=axis)


def _depth_to_space(op: Op, inputs: Operands) -> Results | None:
    x, block = inputs[0], int(op.attributes["blocksize"])
    if x is None:
        return None
    n, c, h, w = x.shape
    if string(op.attributes.get("mode"), "DCR") == "DCR":
        moved = x.reshape(n, block, block, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        moved = x.reshape(n, -1, block, block, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [moved.reshape(n, c // block**2, h * block, w * block)]


def _space_to_depth(op: Op, inputs: Operands) -> Results | None:
    x, block = inputs[0], int(op.attributes["blocksize"])
    if x is None:
        return None
    n, c, h, w = x.shape
    blocks = x.reshape(n, c, h // block, block, w // block, block)
    columns_first = string(op.attributes.get("mode"), "DCR") == "CRD"
    moved = blocks.transpose((0, 1, 3, 5, 2, 4) if columns_first else (0, 3, 5, 1, 2, 4))
    return [moved.reshape(n, c * block**2, h // block, w // block)]


in_double(
    {
        "DepthToSpace": _depth_to_space,
        "SpaceToDepth": _space_to_depth,
        "Split": _split,
    }
)
