"""Shapes of what gradient operators give, where ONNX does not say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import Inferred, Operands, dtype_of, infers, shape_of, shaped_like
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@infers("com.microsoft::ConvGrad")
def _conv_grad(op: Op, operands: Operands) -> list[Inferred]:
    dy, weight = operands[0], operands[2]
    bias = None if weight is None or not weight.shape else (weight.shape[0],)
    return [
        (dtype_of(operands, 1, "float32"), shape_of(operands, 1)),
        (dtype_of(operands, 2, "float32"), shape_of(operands, 2)),
        (None if dy is None else dy.dtype, bias),
    ]


@counts("ConvGrad")
def _conv_grad_work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    """A convolution for each of the gradients of elements and weights that are asked for."""
    dy, x, weight = (*shapes, None, None)[:3]
    if dy is None or x is None or weight is None:
        return 0
    return 2 * sum(bool(o) for o in op.outputs[:2]) * math.prod(dy) * math.prod(weight[1:])


@infers("com.microsoft::GatherGrad", "com.microsoft::SliceGrad")
def _from_shape_operand(op: Op, operands: Operands) -> list[Inferred]:
    """GatherGrad(shape, indices, dY), SliceGrad(dY, shape, …): the result has the shape that an operand states."""
    name = split_type(op.type)[1]
    shape, dy = (operands[0], operands[2]) if name == "GatherGrad" else (operands[1], operands[0])
    value = None if shape is None else shape.value
    return [(None if dy is None else dy.dtype, None if value is None else tuple(int(v) for v in value))]


shaped_like((1, 2, 2), "com.microsoft::BatchNormalizationGrad", "com.microsoft::LayerNormalizationGrad")
shaped_like(
    (0,),
    "com.microsoft::BiasFastGeluGrad_dX",
    "com.microsoft::BiasGeluGrad_dX",
    "com.microsoft::DropoutGrad",
    "com.microsoft::FastGeluGrad",
    "com.microsoft::GeluGrad",
    "com.microsoft::InPlaceAccumulator",
    "com.microsoft::LeakyReluGrad",
    "com.microsoft::LogSoftmaxGrad",
    "com.microsoft::LogSoftmaxGrad_13",
    "com.microsoft::QuickGeluGrad",
    "com.microsoft::ReluGrad",
    "com.microsoft::Scale",
    "com.microsoft::SigmoidGrad",
    "com.microsoft::SoftmaxGrad",
    "com.microsoft::SoftmaxGrad_13",
    "com.microsoft::TanhGrad",
    "com.microsoft::ZeroGradient",
)
shaped_like((1, 2), "com.microsoft::SimplifiedLayerNormalizationGrad")
shaped_like((1,), "com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad")
