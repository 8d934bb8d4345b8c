"""Normalisations and softmax of whole rows; where rows are split, their kernels run (`split.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


def _only_first(c: Call) -> bool:
    return not any(c.op.outputs[1:])


@operator("LayerNormalization")
def _layer_normalization(c: Call) -> Tensor | None:
    if not _only_first(c):
        return None
    shape, scale, bias = c.x.shape[c.axis() :], c.operand(1), c.maybe(2)
    if scale.shape != shape or (bias is not None and bias.shape != shape):
        return None
    return functional.layer_norm(c.x, shape, scale, bias, float(c.attr("epsilon", 1e-5)))


@operator("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def _rms_normalization(c: Call) -> Tensor | None:
    shape = c.x.shape[c.axis() :]
    if not _only_first(c) or c.operand(1).shape != shape:
        return None
    return functional.rms_norm(c.x, shape, c.operand(1), float(c.attr("epsilon", 1e-5)))


@operator("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_normalization(c: Call) -> Sequence[Tensor | None] | None:
    """The norm of X + skip + bias, and the sum."""
    if c.yields(1) or c.yields(2):
        return None
    simplified, epsilon = "Simplified" in c.op.type, float(c.attr("epsilon", 1e-12))
    added = c.maybe(3 if simplified else 4)
    total = c.x + c.operand(1) if added is None else c.x + c.operand(1) + added
    shape = total.shape[-1:]
    if simplified:
        y = functional.rms_norm(total, shape, c.operand(2), epsilon)
    else:
        y = functional.layer_norm(total, shape, c.operand(2), c.maybe(3), epsilon)
    return [y, None, None, total][: len(c.op.outputs)]


def _along(c: Call, function: Callable[..., Tensor]) -> Tensor:
    """Before version 13 the operand was seen as a matrix, cut at `axis`."""
    if not 0 < c.op.opset < 13:
        return function(c.x, dim=c.axis())
    axis = c.axis(1)
    return function(c.x.reshape(math.prod(c.x.shape[:axis]), -1), dim=1).reshape(c.x.shape)


@operator("Softmax")
def _softmax(c: Call) -> Tensor:
    return _along(c, functional.softmax)


@operator("LogSoftmax")
def _log_softmax(c: Call) -> Tensor:
    return _along(c, functional.log_softmax)


@operator("Hardmax")
def _hardmax(c: Call) -> Tensor:
    """One at the first maximum."""

    def hot(x: Tensor, dim: int) -> Tensor:
        return torch.zeros_like(x).scatter(dim, x.argmax(dim, keepdim=True), 1)

    return _along(c, hot)


@operator("BatchNormalization")
def _batch_normalization(c: Call) -> Sequence[Tensor | None] | Tensor | None:
    """With the statistics that the file states: one scale and shift per channel.  With those of whole rows in training:
    running ones are of the variance that divides by all elements."""
    scale, bias, mean, variance = (c.operand(i) for i in range(1, 5))
    epsilon = float(c.attr("epsilon", 1e-5))
    trains = c.attr("training_mode", 0) or (0 < c.op.opset < 7 and not c.attr("is_test", 0))
    if not trains:
        if not _only_first(c):
            return None
        if mean.requires_grad or variance.requires_grad:
            column = (-1, *(1,) * (c.x.ndim - 2))
            factor = scale / torch.sqrt(variance + epsilon)
            return c.x * factor.reshape(column) + (bias - mean * factor).reshape(column)
        return functional.batch_norm(c.x, mean, variance, scale, bias, False, 0.0, epsilon)
    if c.op.opset < 14 or c.reduced or any(c.op.outputs[3:]):
        return None
    y = functional.batch_norm(c.x, None, None, scale, bias, True, 0.0, epsilon)
    running: list[Tensor | None] = [None, None]
    if c.yields(1) or c.yields(2):
        axes, momentum = (0, *range(2, c.x.ndim)), float(c.attr("momentum", 0.9))
        spread, centre = torch.var_mean(c.x.detach(), axes, correction=0)
        running = [
            (old * momentum + new * (1 - momentum)).to(old.dtype) for old, new in ((mean, centre), (variance, spread))
        ]
    return [y, *running][: len(c.op.outputs)]


@operator("GroupNormalization", "InstanceNormalization")
def _group_normalization(c: Call) -> Tensor:
    """Instances are groups of one channel; before version 21 a group had one scale and bias."""
    channels, scale, bias = c.x.shape[1], c.operand(1), c.operand(2)
    groups = channels if c.op.type == "InstanceNormalization" else int(c.attr("num_groups"))
    if scale.numel() != channels:
        each = channels // groups
        scale, bias = scale.repeat_interleave(each), bias.repeat_interleave(each)
    return functional.group_norm(c.x, groups, scale, bias, float(c.attr("epsilon", 1e-5)))


@operator("LpNormalization")
def _lp_normalization(c: Call) -> Tensor:
    """Zero where the norm is."""
    norm = torch.linalg.vector_norm(c.x, float(c.attr("p", 2)), c.axis(), keepdim=True)
    return torch.where(norm == 0, 0, c.x / torch.where(norm == 0, 1, norm))
