"""Operators that the public runtime lacks, or lacks for some element types, attributes or lengths.

A kernel returns None where the operands fall outside what it is meant for; the runtime is asked then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import helper
from onnx.reference.ops.op_cast import cast_to

from planner.ir import Op
from planner.verify.kernels.attention import ATTENTION_KERNELS
from planner.verify.kernels.embedding import EMBEDDING_KERNELS
from planner.verify.kernels.random import RANDOM_KERNELS
from planner.verify.kernels.session import run_node
from planner.verify.vjp.attributes import Array, string
from planner.verify.vjp.elementwise import gelu_gradient, sigmoid
from planner.verify.vjp.recurrent import recurrent_forward

__all__ = ["EXTRA_KERNELS"]

Operands = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Sequence[Array | None] | None"]


def _recurrent(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime has no recurrent layers of doubles, and none that put the batch first."""
    x = np.asarray(inputs[0])
    known = not op.attributes.get("clip")
    return recurrent_forward(op, inputs) if known and (x.dtype == np.float64 or op.attributes.get("layout")) else None


def _matmul_activation(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """FusedMatMul, then the activation named by an attribute."""
    named = op.attributes["activation"]
    parameters = {
        k: op.attributes[f"activation_{k}"]
        for k in ("alpha", "beta", "gamma", "axis")
        if f"activation_{k}" in op.attributes
    }
    kept = {k: v for k, v in op.attributes.items() if not k.startswith("activation")}
    product = run_node(Op(op.name, "com.microsoft::FusedMatMul", op.inputs, op.outputs, kept, 1), inputs)
    activation = Op(op.name, named.decode() if isinstance(named, bytes) else named, ("x",), op.outputs, parameters, 20)
    return run_node(activation, product)


def _gemm_fast_gelu(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """X W + bias, then Gelu in its tanh approximation."""
    x, w, bias = (*inputs, None)[:3]
    product = np.asarray(x) @ np.asarray(w) + (0 if bias is None else bias)
    return run_node(Op(op.name, "Gelu", ("x",), op.outputs, {"approximate": "tanh"}, 20), [product])


def _in_onnx_domain(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime registers the operator without its domain."""
    return run_node(replace(op, type=op.type.rpartition("::")[2]), inputs)


def _sum_of_integers(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """Sums of eight bits in 32."""
    x = np.asarray(inputs[0])
    wide = np.uint32 if x.dtype.kind == "u" else np.int32
    return [x.sum(axis=tuple(op.attributes["axes"]), keepdims=bool(op.attributes.get("keepdims", 1)), dtype=wide)]


def _inverse(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime's kernel does not check that matrices are square, and leaves their memory."""
    x = np.asarray(inputs[0])
    return [np.linalg.inv(x.astype(np.float64)).astype(x.dtype)]


def _matmul_integer(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime takes one zero point for all rows of A."""
    a, b, a_zero, b_zero = (*inputs, None, None)[:4]
    if a is None or b is None or a_zero is None or a_zero.size == 1:
        return None
    rows = a.astype(np.int32) - (a_zero.reshape(-1, 1) if a_zero.ndim == 1 else a_zero)
    return [rows @ (b.astype(np.int32) - (0 if b_zero is None else b_zero))]


def _matmul_nbits(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime takes a bias only where its length is declared, which a session for every shape cannot."""
    bias = inputs[5] if len(inputs) > 5 else None
    if bias is None:
        return None
    (y,) = run_node(replace(op, inputs=op.inputs[:5]), inputs[:5])
    return [None if y is None else y + bias]


def _biased_gelu_gradient(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """dY, X and the bias added to it."""
    dy, x, bias = (np.asarray(v) for v in inputs)
    return [dy * gelu_gradient(x + bias, tanh=op.type.endswith("FastGeluGrad_dX")).astype(dy.dtype)]


def _dropout_gradient(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """dY, the mask of what was kept, ratio and mode."""
    dy, mask, ratio, training = (*inputs, None, None)[:4]
    assert dy is not None
    if training is not None and not np.any(training):
        return [dy]
    kept = 1 - (0.5 if ratio is None else float(ratio.reshape(())))
    return [np.where(np.asarray(mask), dy / dy.dtype.type(kept), dy.dtype.type(0))]


def _cast_to_bytes(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime cannot hand floating-point numbers of eight bits, and any of fewer, over."""
    to = int(op.attributes["to"])
    if helper.tensor_dtype_to_np_dtype(to).isbuiltin == 1:
        return None
    mode = string(op.attributes.get("round_mode"), "up")
    return [cast_to(np.asarray(inputs[0]), to, bool(op.attributes.get("saturate", 1)), mode)]


def _in_doubles(function: Callable[[Op, Sequence[Array]], Array]) -> Kernel:
    """ONNX Runtime has these operators in lower precision only."""

    def kernel(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
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


EXTRA_KERNELS: Mapping[str, Kernel] = {
    **ATTENTION_KERNELS,
    **EMBEDDING_KERNELS,
    **RANDOM_KERNELS,
    "Affine": _in_doubles(lambda op, x: _number(op, "alpha") * x[0] + _number(op, "beta", 0.0)),
    "Cast": _cast_to_bytes,
    "GRU": _recurrent,
    "ImageScaler": _in_doubles(_image_scaler),
    "LSTM": _recurrent,
    "MatMulInteger": _matmul_integer,
    "ParametricSoftplus": _in_doubles(_parametric_softplus),
    "RNN": _recurrent,
    "ScaledTanh": _in_doubles(lambda op, x: _number(op, "alpha") * np.tanh(_number(op, "beta") * x[0])),
    "com.microsoft::SimplifiedLayerNormalization": _in_onnx_domain,
    "com.microsoft::BiasFastGeluGrad_dX": _biased_gelu_gradient,
    "com.microsoft::BiasGeluGrad_dX": _biased_gelu_gradient,
    "com.microsoft::DropoutGrad": _dropout_gradient,
    "com.microsoft::FusedMatMulActivation": _matmul_activation,
    "com.microsoft::GatedAdd": _in_doubles(lambda op, x: x[0] + x[1] * x[2]),
    "com.microsoft::GemmFastGelu": _gemm_fast_gelu,
    "com.microsoft::Inverse": _inverse,
    "com.microsoft::MatMulNBits": _matmul_nbits,
    "com.microsoft::ReduceSumInteger": _sum_of_integers,
    "com.microsoft::ScaledSiLU": _in_doubles(_scaled_silu),
}
