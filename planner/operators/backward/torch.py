"""Gradient operators that training exporters write into graphs (ONNX Runtime training, domain com.microsoft)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from planner.kernels.window import FIRST, fetch, fit, local_space
from planner.runtime.arrays import driven
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
    aware=True,
)
def _softmax(c: Call) -> Tensor:
    """dY and the result; before version 13 the operand was seen as a matrix, cut at `axis`.  Of split rows one sum."""
    dy, y = c.x, c.operand(1)
    shape, axis = y.shape, c.axis()
    if not c.op.type.endswith("_13"):
        cut = c.axis(1)
        flat = (math.prod(shape[:cut]), math.prod(shape[cut:]))
        dy, y, axis = dy.reshape(flat), y.reshape(flat), 1
    if c.reduced:
        logarithm = "LogSoftmax" in c.op.type
        sums = _summed(c, (dy if logarithm else dy * y).sum(axis, keepdim=True))
        return (dy - torch.exp(y) * sums if logarithm else y * (dy - sums)).reshape(shape)
    function = _ATEN._log_softmax_backward_data if "LogSoftmax" in c.op.type else _ATEN._softmax_backward_data
    found: Tensor = function(dy.contiguous(), y, axis, y.dtype)
    return found.reshape(shape)


def _summed(c: Call, value: Tensor) -> Tensor:
    """Over all ranks that hold a part of what is summed."""
    for factor in c.reduced:
        value = c.inside.reduced(value, factor)
    return value


@operator("com.microsoft::LayerNormalizationGrad", "com.microsoft::SimplifiedLayerNormalizationGrad", aware=True)
def _layer_normalization(c: Call) -> Sequence[Tensor | None]:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias (simplified: neither mean nor dBias)."""
    dy, x, scale = c.x, c.operand(1), c.operand(2)
    axis = c.axis(-1, x.ndim)
    axes, rows = tuple(range(axis, x.ndim)), tuple(range(axis))
    column = (*x.shape[:axis], *(1,) * len(axes))
    simplified = "Simplified" in c.op.type
    inverse = c.operand(3 if simplified else 4).reshape(column)
    unit = (x if simplified else x - c.operand(3).reshape(column)) * inverse
    g = dy * scale
    parts = [(g * unit).sum(axes, keepdim=True)]
    if not simplified:
        parts.append(g.sum(axes, keepdim=True))
    count = math.prod(x.shape[axis:]) * math.prod(c.place.shards[f] for f in c.reduced)
    means = _summed(c, torch.stack(parts)) / count
    dx = g - unit * means[0]
    if not simplified:
        dx = dx - means[1]
    found = [(dx * inverse).to(x.dtype), _rows(dy * unit, rows).to(scale.dtype)]
    if not simplified:
        found.append(_rows(dy, rows).to(scale.dtype))
    return [g if name else None for g, name in zip(found, c.op.outputs, strict=False)]


def _rows(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x.sum(axes) if axes else x


@operator("com.microsoft::BatchNormalizationGrad", aware=True)
def _batch_normalization(c: Call) -> Sequence[Tensor]:
    """dY, X, scale, mean, inverse deviation to dX, dScale, dBias, which are the sums that dX needs of all ranks."""
    dy, x = c.x, c.operand(1)
    column, axes = (1, -1, *(1,) * (x.ndim - 2)), (0, *range(2, x.ndim))
    scale, mean, inverse = (c.operand(i).reshape(column) for i in (2, 3, 4))
    unit = (x - mean) * inverse
    dscale, dbias = _summed(c, torch.stack([(dy * unit).sum(axes), dy.sum(axes)]))
    count = x.numel() // x.shape[1] * math.prod(c.place.shards[f] for f in c.reduced)
    dx = scale * inverse * (dy - (unit * dscale.reshape(column) + dbias.reshape(column)) / count)
    return [dx.to(x.dtype), dscale, dbias][: len(c.op.outputs)]


@operator(
    "com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad", aware=True
)
def _cross_entropy(c: Call) -> Tensor:
    """dLoss, log-probabilities, labels, class weights, the label to ignore, what is added to the result.

    A mean divides by the weight of all labels of the whole batch; a label's weight is known to the rank that holds its
    class.
    """
    dy, log_p, labels, weights = c.x, c.operand(1), c.operand(2), c.maybe(3)
    ignored = c.attr("ignore_index") if c.maybe(4) is None else c.number(4)
    used = torch.ones_like(labels, dtype=torch.bool) if ignored is None else labels != ignored
    local = labels.long() - c.place.offset.get("c", 0)
    held = used & (local >= 0) & (local < log_p.shape[1])
    local = torch.where(held, local, 0)
    factor = used.to(log_p.dtype)
    if weights is not None:
        factor = torch.where(held, weights[local], 0)
        factor = c.inside.reduced(factor, "c") if c.place.splits("c") else factor
    if c.attr("reduction", "mean") == "mean":
        total = factor.sum()
        for f in c.reduced:
            total = total if f == "c" else c.inside.reduced(total, f)
        factor = factor / total
    factor = (factor * dy).unsqueeze(1)
    dx = torch.exp(log_p) * factor
    dx = dx.scatter_add(1, local.unsqueeze(1), torch.where(held.unsqueeze(1), -factor, 0))
    return dx if c.maybe(5) is None else dx + c.operand(5)


@operator("com.microsoft::Scale")
def _scale(c: Call) -> Tensor:
    factor = c.operand(1).reshape(()).to(c.x.dtype)
    return c.x / factor if c.attr("scale_down", 0) else c.x * factor


@operator("com.microsoft::ConvGrad", aware=True)
def _convolution(c: Call) -> Sequence[Tensor | None]:
    """dY, X, W to dX, dW, dB.  Where space is split, what other ranks' windows read of this rank's elements is
    fetched: the gradient at their positions."""
    dy, x, weight = c.x, c.operand(1), c.operand(2)
    rank = x.ndim - 2
    strides, dilations = c.attr("strides") or (1,) * rank, c.attr("dilations") or (1,) * rank
    space = local_space(c.op, weight.shape[FIRST:], c.place) if any(f.startswith("y") for f in c.place.shards) else ()
    grown: Tensor = dy
    read = x
    if space:
        grown = driven(fetch(dy, space, "positions", c.place), c)
        covered = [r.window.read_by(r.needed("positions")) for r in space]
        for r, want in zip(space, covered, strict=True):
            read = fit(read, r.dim, r.own("elements"), want)
    else:
        reach = [
            (o - 1) * s + d * (k - 1) + 1
            for o, s, d, k in zip(dy.shape[2:], strides, dilations, weight.shape[2:], strict=True)
        ]
        begin = _begin(c, x.shape[2:], reach)
        widths = [w for d in reversed(range(rank)) for w in (begin[d], reach[d] - x.shape[2 + d] - begin[d])]
        read = functional.pad(x, widths)
    wanted = [c.yields(i) for i in range(3)]
    dx, dw, _ = _ATEN.convolution_backward(
        grown, read, weight, None, list(strides), [0] * rank, list(dilations), False, [0] * rank,
        int(c.attr("group", 1)), [wanted[0], wanted[1], False],
    )  # fmt: skip
    if dx is not None and space:
        for r, have in zip(space, covered, strict=True):
            dx = fit(dx, r.dim, have, r.own("elements"))
    elif dx is not None:
        dx = functional.pad(dx, [-w for w in widths])
    found = [dx, dw, dy.sum((0, *range(2, dy.ndim))) if wanted[2] else None]
    return [g if want else None for g, want in zip(found, wanted, strict=True)][: len(c.op.outputs)]


def _begin(c: Call, space: Sequence[int], reach: Sequence[int]) -> tuple[int, ...]:
    """Padding before each dimension of space."""
    mode, rank = c.attr("auto_pad", "NOTSET"), len(space)
    if mode.startswith("SAME"):
        total = [max(r - n, 0) for r, n in zip(reach, space, strict=True)]
        return tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total)
    return (0,) * rank if mode == "VALID" else tuple(c.attr("pads") or (0,) * 2 * rank)[:rank]


@operator("AveragePoolGrad", "com.microsoft::AveragePoolGrad")
def _average_pool(c: Call) -> Tensor | None:
    """dY: every position hands equal shares to the elements that it counted."""
    rank = c.x.ndim - 2
    pads = tuple(c.attr("pads") or (0,) * 2 * rank)
    plain = c.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID") and pads[:rank] == pads[rank:] and rank in (2, 3)
    if not plain or c.attr("ceil_mode", 0) or "kernel_shape" not in c.op.attributes:
        return None
    function = _ATEN.avg_pool2d_backward if rank == 2 else _ATEN.avg_pool3d_backward
    found: Tensor = function(
        c.x, c.x.new_zeros(c.shape()), list(c.attr("kernel_shape")), list(c.attr("strides") or (1,) * rank),
        list(pads[:rank]), False, bool(c.attr("count_include_pad", 0)), None,
    )  # fmt: skip
    return found


@operator("MaxPoolGrad", "com.microsoft::MaxPoolGrad", aware=True)
def _max_pool(c: Call) -> Tensor:
    """dY and indices into the flattened operand, whose places in one image are the same on every shard of the batch.
    Where space is split, what windows found in other ranks' elements goes back to these."""
    dy, indices, shape = c.x, c.operand(1).long(), c.shape()
    space: tuple[Any, ...] = ()
    if any(f.startswith("y") for f in c.place.shards):
        space = local_space(c.op, tuple(c.attr("kernel_shape")), c.place)
    whole = [r.window.elements for r in space] or list(shape[2:])
    needed = [r.needed("elements") for r in space] or [(0, n) for n in whole]
    at, flat = indices % math.prod(whole), torch.zeros_like(indices)
    stride = 1
    for n, (start, stop) in reversed(list(zip(whole, needed, strict=True))):
        flat, at, stride = flat + (at % n - start) * stride, at // n, stride * (stop - start)
    dx = dy.new_zeros((*shape[:2], stride)).scatter_add(2, flat.flatten(2), dy.flatten(2))
    grown = dx.reshape(*shape[:2], *(stop - start for start, stop in needed))
    return _released(c, grown, shape, space) if space else grown


def _released(c: Call, grown: Tensor, shape: Sequence[int], space: Sequence[Any]) -> Tensor:
    """The transpose of fetching a halo: its gradient."""
    with torch.enable_grad():
        own = grown.new_zeros(shape).requires_grad_()
        fetched: Tensor = driven(fetch(own, space, "elements", c.place), c)
    (found,) = torch.autograd.grad(fetched, own, grown)
    return found


@operator("com.microsoft::DropoutGrad")
def _dropout(c: Call) -> Tensor:
    """dY, the mask of what was kept, ratio and mode."""
    ratio, training = c.number(2), c.number(3)
    ratio = 0.5 if ratio is None else ratio.to(c.x.dtype) if isinstance(ratio, Tensor) else ratio
    dx = torch.where(c.operand(1), c.x / (1 - ratio), 0)
    if isinstance(training, Tensor):
        return torch.where(training.bool(), dx, c.x)
    return dx if training is None or training else c.x


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
