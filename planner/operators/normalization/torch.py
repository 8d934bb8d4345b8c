"""Normalisations and softmax; over a split dimension their statistics are summed among the ranks."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


def _summed(c: Call, value: Tensor) -> Tensor:
    for factor in c.reduced:
        value = c.inside.summed(value, factor)
    return value


@operator("LayerNormalization", aware=True)
def _layer_normalization(c: Call) -> Tensor | None:
    if sum(bool(n) for n in c.op.outputs) > 1:
        return None
    first, scale, bias = c.axis(), c.operand(1), c.maybe(2)
    epsilon = float(c.attr("epsilon", 1e-5))
    if not c.reduced:
        return functional.layer_norm(c.x, c.x.shape[first:], scale, bias, epsilon)
    axes = tuple(range(first, c.x.ndim))
    count = math.prod(c.x.shape[first:]) * math.prod(c.place.shards[f] for f in c.reduced)
    centred = c.x - _summed(c, c.x.sum(axes, keepdim=True)) / count
    variance = _summed(c, centred.square().sum(axes, keepdim=True)) / count
    y = centred * torch.rsqrt(variance + epsilon) * scale
    return y if bias is None else y + bias


@operator("Softmax", aware=True)
def _softmax(c: Call) -> Tensor | None:
    if 0 < c.op.opset < 13:
        return None
    axis = c.axis()
    if not c.reduced:
        return functional.softmax(c.x, dim=axis)
    largest = c.x.detach().amax(axis, keepdim=True)
    for factor in c.reduced:
        largest = c.inside.reduced(largest, factor, "max")
    e = torch.exp(c.x - largest)
    return e / _summed(c, e.sum(axis, keepdim=True))


@operator("BatchNormalization")
def _batch_normalization(c: Call) -> Tensor | None:
    """With the statistics that the file states: one scale and shift per channel."""
    if c.attr("training_mode", 0) or sum(bool(n) for n in c.op.outputs) > 1:
        return None
    scale, bias, mean, variance = (c.operand(i) for i in range(1, 5))
    return functional.batch_norm(c.x, mean, variance, scale, bias, False, 0.0, float(c.attr("epsilon", 1e-5)))
