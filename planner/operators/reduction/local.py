"""Reductions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, axes_of
from planner.kernels.local import in_double, in_place_of_runtime

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]

Kernel = Callable[[Op, Operands], "Results | None"]


def _reduce(function: Callable[..., Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        x = inputs[0]
        if x is None:
            return None
        axes = axes_of(op, inputs, 1, x.ndim)
        if not axes:
            if op.attributes.get("noop_with_empty_axes", 0):
                return None
            axes = tuple(range(x.ndim))
        return [np.asarray(function(x, axis=axes, keepdims=bool(op.attributes.get("keepdims", 1))))]

    return kernel


def _log_sum_exp(x: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    highest = x.max(axis=axis, keepdims=True, initial=-math.inf)
    base = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        y = np.log(np.exp(x - base).sum(axis=axis, keepdims=True)) + base
    return y if keepdims else np.squeeze(y, axis)


in_double(
    {
        "ReduceL1": _reduce(lambda x, axis, keepdims: np.abs(x).sum(axis=axis, keepdims=keepdims)),
        "ReduceL2": _reduce(lambda x, axis, keepdims: np.sqrt(np.square(x).sum(axis=axis, keepdims=keepdims))),
        "ReduceLogSum": _reduce(lambda x, axis, keepdims: np.log(x.sum(axis=axis, keepdims=keepdims))),
        "ReduceLogSumExp": _reduce(_log_sum_exp),
        "ReduceMax": _reduce(lambda x, axis, keepdims: x.max(axis=axis, keepdims=keepdims, initial=-math.inf)),
        "ReduceMean": _reduce(np.mean),
        "ReduceMin": _reduce(lambda x, axis, keepdims: x.min(axis=axis, keepdims=keepdims, initial=math.inf)),
        "ReduceProd": _reduce(np.prod),
        "ReduceSum": _reduce(np.sum),
        "ReduceSumSquare": _reduce(lambda x, axis, keepdims: np.square(x).sum(axis=axis, keepdims=keepdims)),
    }
)


def _sum_of_integers(op: Op, inputs: Operands) -> Results | None:
    """Sums of eight bits in 32."""
    x = np.asarray(inputs[0])
    wide = np.uint32 if x.dtype.kind == "u" else np.int32
    return [x.sum(axis=tuple(op.attributes["axes"]), keepdims=bool(op.attributes.get("keepdims", 1)), dtype=wide)]


in_place_of_runtime(
    {
        "com.microsoft::ReduceSumInteger": _sum_of_integers,
    }
)
