"""Normalisations and softmax of whole rows; where rows are split, their kernels run (`split.py`)."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("LayerNormalization")
def _layer_normalization(c: Call) -> Tensor | None:
    if sum(bool(n) for n in c.op.outputs) > 1:
        return None
    first, scale, bias = c.axis(), c.operand(1), c.maybe(2)
    return functional.layer_norm(c.x, c.x.shape[first:], scale, bias, float(c.attr("epsilon", 1e-5)))


@operator("Softmax")
def _softmax(c: Call) -> Tensor | None:
    return None if 0 < c.op.opset < 13 else functional.softmax(c.x, dim=c.axis())


@operator("BatchNormalization")
def _batch_normalization(c: Call) -> Tensor | None:
    """With the statistics that the file states: one scale and shift per channel."""
    if c.attr("training_mode", 0) or sum(bool(n) for n in c.op.outputs) > 1:
        return None
    scale, bias, mean, variance = (c.operand(i) for i in range(1, 5))
    return functional.batch_norm(c.x, mean, variance, scale, bias, False, 0.0, float(c.attr("epsilon", 1e-5)))
