"""Matrix products, with the activations that ONNX Runtime fuses with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.local import in_double, in_numpy, in_place_of_runtime
from planner.kernels.session import run_node
from planner.operators.contraction.gradient import einsum_labels
from planner.operators.elementwise.local import activate, gelu

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]

_FAST = (np.float32, np.float64)


def _matmul(op: Op, inputs: Operands) -> Array | None:
    a, b = inputs
    if a is None or b is None or a.dtype not in _FAST:
        return None
    if b.ndim == 2 and a.ndim > 2:  # one product instead of many
        return (a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1])
    return np.asarray(np.matmul(a, b))


def _gemm(op: Op, inputs: Operands) -> Array | None:
    a, b, c = (*inputs, None)[:3]
    if a is None or b is None or a.dtype not in _FAST or "broadcast" in op.attributes:
        return None
    y: Array = (a.T if op.attributes.get("transA") else a) @ (b.T if op.attributes.get("transB") else b)
    alpha, beta = op.attributes.get("alpha", 1.0), op.attributes.get("beta", 1.0)
    if alpha != 1:
        y = y * a.dtype.type(alpha)
    if c is not None:
        y = y + (c if beta == 1 else c * a.dtype.type(beta))
    return y


in_numpy(
    {
        "Gemm": _gemm,
        "MatMul": _matmul,
    }
)


def _einsum(op: Op, inputs: Operands) -> Results | None:
    operands = [x for x in inputs if x is not None]
    terms, result = einsum_labels(string(op.attributes["equation"]), [x.ndim for x in operands])
    return [np.einsum(",".join(terms) + "->" + result, *operands, optimize=len(operands) > 1)]


def _fused_matmul(op: Op, inputs: Operands) -> Results | None:
    """`transBatch` moves the first dimension before the last one, `trans` then swaps the last two."""
    sides = []
    for x, s in zip(inputs, "AB", strict=False):
        if x is None:
            return None
        if x.ndim > 1:
            x = np.moveaxis(x, 0, -2) if op.attributes.get(f"transBatch{s}", 0) else x
            x = np.swapaxes(x, -1, -2) if op.attributes.get(f"trans{s}", 0) else x
        sides.append(x)
    alpha = op.attributes.get("alpha", 1.0)
    y = np.matmul(*sides)
    return [y if alpha == 1 else y * alpha]


def _fused_gemm(op: Op, inputs: Operands) -> Results | None:
    a, b, c = (*inputs, None)[:3]
    if a is None or b is None:
        return None
    y = (a.T if op.attributes.get("transA", 0) else a) @ (b.T if op.attributes.get("transB", 0) else b)
    y *= op.attributes.get("alpha", 1.0)
    if c is not None:
        y += c * op.attributes.get("beta", 1.0)
    parameters = {k: op.attributes[f"activation_{k}"] for k in ("alpha", "beta") if f"activation_{k}" in op.attributes}
    return [activate(string(op.attributes["activation"]), y, parameters)]


def _gemm_fast_gelu(op: Op, inputs: Operands) -> Results | None:
    x, w, bias = (*inputs, None)[:3]
    if x is None or w is None:
        return None
    y = x @ w
    return [gelu(y if bias is None else y + bias, tanh=True)]


in_double(
    {
        "Einsum": _einsum,
        "com.microsoft::FusedGemm": _fused_gemm,
        "com.microsoft::FusedMatMul": _fused_matmul,
        "com.microsoft::GemmFastGelu": _gemm_fast_gelu,
        "com.microsoft::TransposeMatMul": _fused_matmul,
    }
)


def _matmul_activation(op: Op, inputs: Operands) -> Results | None:
    """FusedMatMul, then the activation named by an attribute."""
    named = op.attributes["activation"]
    parameters = {
        k: op.attributes[f"activation_{k}"]
        for k in ("alpha", "beta", "gamma", "axis")
        if f"activation_{k}" in op.attributes
    }
    attributes = {k: v for k, v in op.attributes.items() if not k.startswith("activation")}
    product = run_node(Op(op.name, "com.microsoft::FusedMatMul", op.inputs, op.outputs, attributes, 1), inputs)
    activation = Op(op.name, named.decode() if isinstance(named, bytes) else named, ("x",), op.outputs, parameters, 20)
    return run_node(activation, product)


def _gemm_fast_gelu_by_runtime(op: Op, inputs: Operands) -> Results | None:
    """X W + bias, then Gelu in its tanh approximation."""
    x, w, bias = (*inputs, None)[:3]
    product = np.asarray(x) @ np.asarray(w) + (0 if bias is None else bias)
    return run_node(Op(op.name, "Gelu", ("x",), op.outputs, {"approximate": "tanh"}, 20), [product])


def _inverse(op: Op, inputs: Operands) -> Results | None:
    """ONNX Runtime's kernel does not check that matrices are square, and leaves their memory."""
    x = np.asarray(inputs[0])
    return [np.linalg.inv(x.astype(np.float64)).astype(x.dtype)]


in_place_of_runtime(
    {
        "com.microsoft::FusedMatMulActivation": _matmul_activation,
        "com.microsoft::GemmFastGelu": _gemm_fast_gelu_by_runtime,
        "com.microsoft::Inverse": _inverse,
    }
)
