"""Shapes of what quantised operators give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import (
    UNKNOWN,
    Inferred,
    Operands,
    as_onnx,
    broadcast,
    dtype_of,
    first_of,
    infers,
    product,
    shape_of,
    shaped_like,
)
from planner.ir import Op

__all__: list[str] = []


def _quantised_gemm(operands: Operands) -> str:
    """Scaled back to integers where the result has a zero point, else to floats."""
    return dtype_of(operands, 8, "float32")


@infers("com.microsoft::DynamicQuantizeLSTM")
def _dynamic_quantize_lstm(op: Op, operands: Operands) -> list[Inferred]:
    x = operands[0]
    if x is None or x.shape is None or len(x.shape) != 3:
        return [(None, None)] * 3
    directions = 2 if op.attributes.get("direction") == "bidirectional" else 1
    hidden = int(op.attributes.get("hidden_size", 0))
    state = (directions, x.shape[1], hidden)
    return [(x.dtype, (x.shape[0], directions, x.shape[1], hidden)), (x.dtype, state), (x.dtype, state)]


@infers("com.microsoft::MatMulIntegerToFloat")
def _matmul_integer_to_float(op: Op, operands: Operands) -> list[Inferred] | None:
    return product(1, lambda operands: dtype_of(operands, 2, "float32"))(op, operands)


@infers("com.microsoft::DequantizeLinear")
def _dequantize(op: Op, operands: Operands) -> list[Inferred]:
    return [(dtype_of(operands, 1, "float32"), shape_of(operands, 0))]


@infers("com.microsoft::MatMulNBits")
def _weight_bits(op: Op, operands: Operands) -> list[Inferred]:
    """MatMulNBits: the columns are an attribute."""
    x = first_of(operands)
    return [UNKNOWN] if x is None else [(x[0], (*x[1][:-1], int(op.attributes.get("N", 0))))]


@infers("com.microsoft::QLinearConcat")
def _concat(op: Op, operands: Operands) -> list[Inferred]:
    """QLinearConcat: scale and zero point of the result, then tensor, scale and zero point of each part."""
    parts = [shape_of(operands, k) for k in range(2, len(operands), 3)]
    if not parts or any(p is None for p in parts):
        return [UNKNOWN]
    known = [p for p in parts if p is not None]
    axis = int(op.attributes.get("axis", 0)) % len(known[0])
    shape = list(known[0])
    shape[axis] = sum(p[axis] for p in known)
    return [(dtype_of(operands, 2, "uint8"), tuple(shape))]


@infers("com.microsoft::QuantizeLinear")
def _quantize(op: Op, operands: Operands) -> list[Inferred]:
    return [(dtype_of(operands, 2, "uint8"), shape_of(operands, 0))]


infers("com.microsoft::DynamicQuantizeMatMul")(product(1, lambda operands: dtype_of(operands, 0, "float32")))
infers("com.microsoft::MatMulInteger16")(product(1, lambda operands: "int32"))
infers("com.microsoft::QGemm")(product(3, _quantised_gemm))
infers("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")(broadcast(3))
infers("com.microsoft::QLinearAveragePool")(as_onnx("AveragePool", operands=(0,)))
infers("com.microsoft::QLinearGlobalAveragePool")(as_onnx("GlobalAveragePool", operands=(0,)))
shaped_like((0,), "com.microsoft::QLinearLeakyRelu", "com.microsoft::QLinearSigmoid", "com.microsoft::QLinearSoftmax")
