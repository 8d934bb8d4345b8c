"""Arithmetic and casts, as numpy says them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import helper

from planner.ir import Op
from planner.kernels.attributes import Array, align
from planner.kernels.local import in_numpy

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]

_FAST = (np.float32, np.float64)
_WIDE = {"bfloat16", "float16", "float32", "float64"}
Kernel = Callable[[Op, Operands], "Array | None"]


def _binary(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Array | None:
        a, b = inputs
        if a is None or b is None or a.dtype != b.dtype or a.dtype not in _FAST:
            return None
        return function(a, align(op, a, b))

    return kernel


def _identity(op: Op, inputs: Operands) -> Array | None:
    return inputs[0]


def _cast(op: Op, inputs: Operands) -> Array | None:
    """Between floating-point types of two bytes and more; the runtime cannot hand bfloat16 over."""
    x, like = (*inputs, None)[:2]
    if x is None:
        return None
    to = helper.tensor_dtype_to_np_dtype(int(op.attributes["to"])) if like is None else like.dtype
    return x.astype(to) if {x.dtype.name, to.name} <= _WIDE else None


def _neg(op: Op, inputs: Operands) -> Array | None:
    (x,) = inputs
    return None if x is None or x.dtype not in _FAST else -x


in_numpy(
    {
        "Add": _binary(np.add),
        "Cast": _cast,
        "CastLike": _cast,
        "Div": _binary(np.divide),
        "Identity": _identity,
        "Mul": _binary(np.multiply),
        "Neg": _neg,
        "Sub": _binary(np.subtract),
        "planner::Detach": _identity,
    }
)
