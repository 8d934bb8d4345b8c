"""Gradient operators that training exporters write into graphs (ONNX Runtime training, domain com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []

_ATEN = torch.ops.aten

# Gradients of functions of one operand, from the gradient of the result and what the forward saved.
_POINTWISE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "com.microsoft::FastGeluGrad": lambda dy, x: _ATEN.gelu_backward(dy, x, approximate="tanh"),
    "com.microsoft::GeluGrad": lambda dy, x: _ATEN.gelu_backward(dy, x),
    "com.microsoft::ReluGrad": lambda dy, y: torch.where(y > 0, dy, 0),
    "com.microsoft::SigmoidGrad": lambda dy, y: _ATEN.sigmoid_backward(dy, y),
    "com.microsoft::TanhGrad": lambda dy, y: _ATEN.tanh_backward(dy, y),
}


@operator(*_POINTWISE)
def _pointwise(c: Call) -> Tensor:
    return _POINTWISE[c.op.type](c.x, c.operand(1))


@operator("com.microsoft::BiasFastGeluGrad_dX", "com.microsoft::BiasGeluGrad_dX")
def _biased_gelu(c: Call) -> Tensor:
    """dY, X and the bias added to it."""
    fast = c.op.type.endswith("FastGeluGrad_dX")
    found: Tensor = _ATEN.gelu_backward(c.x, c.operand(1) + c.operand(2), approximate="tanh" if fast else "none")
    return found


@operator("com.microsoft::LeakyReluGrad")
def _leaky_relu(c: Call) -> Tensor:
    return torch.where(c.operand(1) > 0, c.x, c.x * float(c.attr("alpha", 0.01)))


@operator("com.microsoft::QuickGeluGrad")
def _quick_gelu(c: Call) -> Tensor:
    x, alpha = c.operand(1), float(c.attr("alpha", 1.702))
    s = torch.sigmoid(alpha * x)
    return c.x * s * (1 + alpha * x * (1 - s))


@operator(
    "com.microsoft::LogSoftmaxGrad",
    "com.microsoft::LogSoftmaxGrad_13",
    "com.microsoft::SoftmaxGrad",
    "com.microsoft::SoftmaxGrad_13",
)
def _softmax(c: Call) -> Tensor:
    """dY and the result; before version 13 the operand was seen as a matrix, cut at `axis`."""
    dy, y = c.x, c.operand(1)
    shape, axis = y.shape, c.axis()
    if not c.op.type.endswith("_13"):
        cut = c.axis(1)
        flat = (math.prod(shape[:cut]), math.prod(shape[cut:]))
        dy, y, axis = dy.reshape(flat), y.reshape(flat), 1
    function = _ATEN._log_softmax_backward_data if "LogSoftmax" in c.op.type else _ATEN._softmax_backward_data
    found: Tensor = function(dy.contiguous(), y, axis, y.dtype)
    return found.reshape(shape)


@operator("com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad")
def _layer_normalization(c: Call) -> Sequence[Tensor | None] | None:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias (simplified: neither mean nor dBias)."""
    if c.reduced:
        return None
    dy, x, scale = c.x, c.operand(1), c.operand(2)
    axis = c.axis(-1, x.ndim)
    axes, rows = tuple(range(axis, x.ndim)), tuple(range(axis))
    column = (*x.shape[:axis], *(1,) * len(axes))
    simplified = "Simplified" in c.op.type
    inverse = c.operand(3 if simplified else 4).reshape(column)
    unit = (x if simplified else x - c.operand(3).reshape(column)) * inverse
    g = dy * scale
    dx = g - unit * (g * unit).mean(axes, keepdim=True)
    if not simplified:
        dx = dx - g.mean(axes, keepdim=True)
    found = [(dx * inverse).to(x.dtype), _rows(dy * unit, rows).to(scale.dtype)]
    if not simplified:
        found.append(_rows(dy, rows).to(scale.dtype))
    return [g if name else None for g, name in zip(found, c.op.outputs, strict=False)]


def _rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.sum(axes) if axes else x


@operator("com.microsoft::BatchNormalizationGrad")
def _batch_normalization(c: Call) -> Sequence[Tensor] | None:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias."""
    if c.reduced:
        return None
    dy, x = c.x, c.operand(1)
    column, axes = (1, -1, *(1,) * (x.ndim - 2)), (0, *range(2, x.ndim))
    scale, mean, inverse = (c.operand(i).reshape(column) for i in (2, 3, 4))
    unit = (x - mean) * inverse
    dscale, dbias = (dy * unit).sum(axes), dy.sum(axes)
    count = x.numel() // x.shape[1]
    dx = scale * inverse * (dy - (unit * dscale.reshape(column) + dbias.reshape(column)) / count)
    return [dx.to(x.dtype), dscale, dbias][: len(c.op.outputs)]


@operator(
    "com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad", aware=True
)
def _cross_entropy(c: Call) -> Tensor | None:
    """dLoss, log-probabilities, labels, class weights, the label to ignore, what is added to the result.

    A mean divides by the weight of all labels of the whole batch.
    """
    if c.place.splits("c"):
        return None
    dy, log_p, labels, weights = c.x, c.operand(1), c.operand(2), c.maybe(3)
    ignored = c.attr("ignore_index") if c.maybe(4) is None else c.number(4)
    used = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    labels = torch.where(used, labels, 0).long()
    factor = used.to(log_p.dtype)
    if weights is not None:
        factor = factor * weights[labels]
    if c.attr("reduction", "mean") == "mean":
        total = factor.sum()
        for f in c.reduced:
            total = c.inside.reduced(total, f)
        factor = factor / total
    factor = (factor * dy).unsqueeze(1)
    dx = torch.exp(log_p) * factor
    dx = dx.scatter_add(1, labels.unsqueeze(1), -factor.expand_as(labels.unsqueeze(1)))
    return dx if c.maybe(5) is None else dx + c.operand(5)


@operator("com.microsoft::Scale")
def _scale(c: Call) -> Tensor:
    factor = c.operand(1).reshape(()).to(c.x.dtype)
    return c.x / factor if c.attr("scale_down", 0) else c.x * factor


@operator("com.microsoft::ConvGrad")
def _convolution(c: Call) -> Sequence[Tensor | None] | None:
    """dY, X, W to dX, dW, dB."""
    dy, x, weight = c.x, c.operand(1), c.operand(2)
    rank = x.ndim - 2
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    if c.attr("auto_pad", "NOTSET") != "NOTSET" or pads[:rank] != pads[rank:]:
        return None
    strides, dilations = c.attr("strides") or (1,) * rank, c.attr("dilations") or (1,) * rank
    wanted = [c.yields(i) for i in range(3)]
    found = _ATEN.convolution_backward(
        dy, x, weight, [weight.shape[0]], list(strides), list(pads[:rank]), list(dilations), False, [0] * rank,
        int(c.attr("group", 1)), wanted,
    )  # fmt: skip
    return [g if want else None for g, want in zip(found, wanted, strict=True)][: len(c.op.outputs)]


@operator("MaxPoolGrad", "com.microsoft::MaxPoolGrad")
def _max_pool(c: Call) -> Tensor:
    """dY and indices into the flattened operand, whose places in one image are the same on every shard of the batch."""
    dy, indices, shape = c.x, c.operand(1), c.shape()
    image = math.prod(shape[2:])
    dx = dy.new_zeros((*shape[:2], image))
    return dx.scatter_add(2, (indices % image).flatten(2).long(), dy.flatten(2)).reshape(shape)


@operator("com.microsoft::DropoutGrad")
def _dropout(c: Call) -> Tensor:
    """dY, the mask of what was kept, ratio and mode."""
    ratio, training = c.number(2), c.number(3)
    if training is not None and not training:
        return c.x
    return torch.where(c.operand(1), c.x / (1 - (0.5 if ratio is None else ratio)), 0)


@operator("com.microsoft::SliceGrad")
def _slice(c: Call) -> Tensor | None:
    """dY, the shape of the operand, and the slice's own operands: zeros around dY."""
    dy, shape, starts, ends = c.x, c.integers(1), c.integers(2), c.integers(3)
    if shape is None or starts is None or ends is None:
        return None
    axes, steps = c.integers(4) or tuple(range(len(starts))), c.integers(5) or (1,) * len(starts)
    region = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step < 0:
            return None
        region[axis % len(shape)] = slice(*slice(start, end, step).indices(shape[axis % len(shape)]))
    dx = dy.new_zeros(shape)
    dx[tuple(region)] = dy
    return dx
