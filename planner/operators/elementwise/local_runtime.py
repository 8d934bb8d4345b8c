"""Operators on each element that ONNX Runtime lacks, or has in lower precision only."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import helper
from onnx.reference.ops.op_cast import cast_to

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.local import in_place_of_runtime
from planner.operators.elementwise.gradient import sigmoid

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]

Kernel = Callable[[Op, Operands], "Results | None"]


def _cast_to_bytes(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime cannot hand floating-point numbers of eight bits, and any of fewer, over."""
    to = int(op.attributes["to"])
    if helper.tensor_dtype_to_np_dtype(to).isbuiltin == 1:
        return None
    mode = string(op.attributes.get("round_mode"), "up")
    return [cast_to(np.asarray(inputs[0]), to, bool(op.attributes.get("saturate", 1)), mode)]


def _in_doubles(function: Callable[[Op, Sequence[Array]], Array]) -> Kernel:
    """ONNX Runtime has these operators in lower precision only."""

    def kernel(op: Op, inputs: Operands) -> Results | None:
        given = [x for x in inputs if x is not None]
        return [function(op, given)] if given[0].dtype == np.float64 else None

    return kernel


def _number(op: Op, name: str, default: float = 1.0) -> float:
    return float(op.attributes.get(name, default))


def _parametric_softplus(op: Op, inputs: Sequence[Array]) -> Array:
    return np.asarray(_number(op, "alpha") * np.logaddexp(0, _number(op, "beta") * inputs[0]))


def _image_scaler(op: Op, inputs: Sequence[Array]) -> Array:
    return np.asarray(inputs[0] * _number(op, "scale") + np.reshape(op.attributes["bias"], (-1, 1, 1)))


def _scaled_silu(op: Op, inputs: Sequence[Array]) -> Array:
    z = (inputs[1] if len(inputs) > 1 else _number(op, "alpha")) * inputs[0]
    return np.asarray(z * sigmoid(z))


in_place_of_runtime(
    {
        "Affine": _in_doubles(lambda op, x: _number(op, "alpha") * x[0] + _number(op, "beta", 0.0)),
        "Cast": _cast_to_bytes,
        "ImageScaler": _in_doubles(_image_scaler),
        "ParametricSoftplus": _in_doubles(_parametric_softplus),
        "ScaledTanh": _in_doubles(lambda op, x: _number(op, "alpha") * np.tanh(_number(op, "beta") * x[0])),
        "com.microsoft::GatedAdd": _in_doubles(lambda op, x: x[0] + x[1] * x[2]),
        "com.microsoft::ScaledSiLU": _in_doubles(_scaled_silu),
    }
)
