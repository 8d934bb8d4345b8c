"""Integer arithmetic on quantised tensors, and the classical models of ai.onnx.ml."""

from __future__ import annotations

import math

from planner.rules.notation import expand
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


def _zero_points(o: Operator, row: int, column: int) -> tuple[str, str]:
    """Notation of zero points: one for the tensor, or one per row of A and per column of B."""

    def one(i: int, factor: str) -> str:
        return factor if o.has(i) and o.rank(i) == 1 and o.shape(i)[0] > 1 else "*..."

    return one(row, "m"), one(column, "n")


@rule("MatMulInteger")
def _matmul_integer(o: Operator) -> Rule:
    """Sums of products of int8 in int32: exact, so that parts of the contraction add up exactly."""
    left = "k" if o.rank(0) == 1 else "b... m k"
    right = "k" if o.rank(1) == 1 else "b... k n"
    rows = ("b... " if max(o.rank(0), o.rank(1)) > 1 else "") + ("m " if o.rank(0) > 1 else "")
    a_zero, b_zero = _zero_points(o, 2, 3)
    text = f"{left}, {right}, {a_zero}, {b_zero} -> {rows}{'n' if o.rank(1) > 1 else ''}"
    return sharded(o, text, kind="matmul", flops=_products(o, text))


@rule("QLinearMatMul")
def _qlinear_matmul(o: Operator) -> Rule:
    """The sum over `k` is rescaled and rounded, so that it stays whole.

    Operands: A, its scale and zero point, B, its scale and zero point, the result's.
    """
    per_row = "m" if o.shape(1) and o.shape(1)[-1] > 1 else "*..."
    per_column = "n" if o.shape(4) and o.shape(4)[-1] > 1 else "*..."
    text = f"b... m k!, {per_row}, {per_row}, b... k! n, {per_column}, {per_column}, *..., *... -> b... m n"
    return sharded(o, text, kind="matmul", flops=_products(o, text))


def _products(o: Operator, text: str) -> float:
    return 2.0 * math.prod(expand(text, o.inputs, o.outputs).factors.values())


@rule("ConvInteger")
def _conv_integer(o: Operator) -> Rule:
    weight = o.shape(1)
    per_channel = "(g o)" if o.has(3) and math.prod(o.shape(3)) > 1 else "*..."
    return sharded(
        o,
        f"n (g i) *..., (g o) i *..., *..., {per_channel} -> n (g o) *...",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1]},
        # A padded border counts as the zero point, which each part of the sum subtracts for its own channels.
        flops=2.0 * math.prod(o.result()) * math.prod(weight[1:]),
        counts={"group": ("g",)},
    )


@rule("QLinearConv")
def _qlinear_conv(o: Operator) -> Rule:
    """Operands: X, scale, zero; W, scale, zero; result's scale, zero; bias.  The sum is rounded: channels in whole."""
    weight = o.shape(3)
    per_channel = "(g o)" if math.prod(o.shape(4)) > 1 else "*..."
    return sharded(
        o,
        f"n (g i!) *..., *..., *..., (g o) i! *..., {per_channel}, {per_channel}, *..., *..., (g o) -> n (g o) *...",
        kind="conv",
        sizes={"g": int(o.attribute("group", 1)), "i": weight[1]},
        flops=2.0 * math.prod(o.result()) * math.prod(weight[1:]),
        counts={"group": ("g",)},
    )


@rule("ai.onnx.ml::LinearClassifier")
def _linear_classifier(o: Operator) -> Rule:
    if o.rank(0) == 1:
        return sharded(o, "* -> *, *...", kind="matmul")
    return sharded(o, "n * -> n, n *", kind="matmul", flops=2.0 * math.prod(o.shape(0)))


@rule("ai.onnx.ml::LinearRegressor")
def _linear_regressor(o: Operator) -> Rule:
    if o.rank(0) == 1:
        return sharded(o, "* -> *...", kind="matmul")
    return sharded(o, "n * -> n *", kind="matmul", flops=2.0 * math.prod(o.shape(0)))


@rule("ai.onnx.ml::Normalizer", "ai.onnx.ml::Scaler", "ai.onnx.ml::Imputer", "ai.onnx.ml::FeatureVectorizer")
def _per_row(o: Operator) -> Rule:
    if o.rank(0) == 1 or len(o.inputs) > 1:
        return sharded(o, ", ".join(["*..."] * len(o.inputs)) + " -> *...")
    return sharded(o, "n * -> n *")
