"""Shapes of what normalisations give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, first_of, infers, shape_of, shaped_like
from planner.ir import Op

__all__: list[str] = []


@infers("com.microsoft::BatchNormInternal")
def _batch_norm(op: Op, operands: Operands) -> list[Inferred]:
    x = first_of(operands)
    channels = ("float32", shape_of(operands, 3))
    return [x or UNKNOWN, channels, channels, channels, channels]


@infers("com.microsoft::SimplifiedLayerNormalization")
def _norm(op: Op, operands: Operands) -> list[Inferred]:
    x = first_of(operands)
    if x is None:
        return [UNKNOWN]
    axis = int(op.attributes.get("axis", -1)) % len(x[1])
    return [x, ("float32", (*x[1][:axis], *(1,) * (len(x[1]) - axis)))]


@infers("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_norm(op: Op, operands: Operands) -> list[Inferred]:
    """Y, mean and inverse deviation per row, and the sum X + skip."""
    x = first_of(operands)
    if x is None:
        return [UNKNOWN]
    rows = ("float32", (*x[1][:-1], 1))
    return [x, rows, rows, x]


shaped_like((0,), "com.microsoft::BiasSoftmax", "com.microsoft::GroupNorm")
shaped_like((0,), "GroupNormalization", "MeanVarianceNormalization")
