"""Gather, and one-hot codes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_double, in_numpy

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _gather(op: Op, inputs: Operands) -> Array | None:
    x, at = inputs
    if x is None or at is None:
        return None
    return np.asarray(np.take(x, at, axis=op.attributes.get("axis", 0)))


in_numpy(
    {
        "Gather": _gather,
    }
)


def _one_hot(op: Op, inputs: Operands) -> Results | None:
    indices, depth, values = inputs
    if indices is None or depth is None or values is None:
        return None
    count = int(np.reshape(depth, ()))
    indices = indices.astype(np.int64)
    wrapped = np.where(indices < 0, indices + count, indices)
    hot = np.expand_dims(wrapped, -1) == np.arange(count)
    return [np.moveaxis(np.where(hot, values[1], values[0]), -1, op.attributes.get("axis", -1))]


in_double(
    {
        "OneHot": _one_hot,
    }
)
