"""Normalisations and softmax."""

from __future__ import annotations

import math

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.gradients import Call, NoVjpError, register, unbroadcast
from planner.operators.elementwise.gradient import sigmoid

__all__ = ["group_norm", "log_softmax", "softmax", "softmax_gradient", "standardise_gradient"]

Gradients = list["Array | None"]
Axes = tuple[int, ...]


def log_softmax(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis=axis, keepdims=True)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(e / np.sum(e, axis=axis, keepdims=True))


def softmax_gradient(y: Array, dy: Array, axis: int) -> Array:
    return np.asarray(y * (dy - np.sum(dy * y, axis=axis, keepdims=True)))


def standardise_gradient(centred: Array, inverse_deviation: Array, g: Array, axes: Axes) -> Array:
    """Through x̂ = (x - mean)·r, r = 1/√(var + ε), both statistics taken over `axes`; g is the gradient of x̂."""
    unit = centred * inverse_deviation
    mean = np.mean(g, axis=axes, keepdims=True)
    along = np.mean(g * unit, axis=axes, keepdims=True)
    return np.asarray(inverse_deviation * (g - mean - unit * along))


@register("Softmax", "LogSoftmax")
def _softmax(c: Call) -> Gradients:
    y, dy = c.y, c.dy
    if 0 < c.op.opset < 13:  # the operand was seen as a matrix, cut at `axis`
        axis = normalise_axis(c.attr("axis", 1), y.ndim)
        shape = (math.prod(y.shape[:axis]), math.prod(y.shape[axis:]))
        y, dy, axis = y.reshape(shape), dy.reshape(shape), 1
    else:
        axis = c.attr("axis", -1)
    if c.op.type == "Softmax":
        g = softmax_gradient(y, dy, axis)
    else:
        g = dy - np.exp(y) * np.sum(dy, axis=axis, keepdims=True)
    return [g.reshape(c.y.shape)]


@register("LayerNormalization")
def _layer_norm(c: Call) -> Gradients:
    _only_first_result(c)
    scale, bias = c.operand(1), c.maybe(2)
    axes = tuple(range(normalise_axis(c.attr("axis", -1), c.x.ndim), c.x.ndim))
    centred = c.x - c.x.mean(axis=axes, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + c.attr("epsilon", 1e-5))
    return [
        standardise_gradient(centred, r, c.dy * scale, axes) if c.wants(0) else None,
        unbroadcast(c.dy * centred * r, scale.shape) if c.wants(1) else None,
        unbroadcast(c.dy, bias.shape) if bias is not None else None,
    ]


@register("RMSNormalization", "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization")
def _rms_norm(c: Call) -> Gradients:
    _only_first_result(c)
    scale = c.operand(1)
    axes = tuple(range(normalise_axis(c.attr("axis", -1), c.x.ndim), c.x.ndim))
    r = 1 / np.sqrt(np.mean(c.x * c.x, axis=axes, keepdims=True) + c.attr("epsilon", 1e-5))
    unit = c.x * r
    g = c.dy * scale
    return [
        r * (g - unit * np.mean(g * unit, axis=axes, keepdims=True)) if c.wants(0) else None,
        unbroadcast(c.dy * unit, scale.shape) if c.wants(1) else None,
    ]


@register("com.microsoft::SkipLayerNormalization", "com.microsoft::SkipSimplifiedLayerNormalization")
def _skip_norm(c: Call) -> Gradients:
    """norm(x + skip + bias); the fourth result is the sum, whose own gradient joins."""
    simplified = c.op.type.endswith("SkipSimplifiedLayerNormalization")
    scale, skip = c.operand(2), c.operand(1)
    at = 3 if simplified else 4
    bias = c.maybe(at)
    total = c.x + skip if bias is None else c.x + skip + bias
    centred = total if simplified else total - total.mean(axis=-1, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + c.attr("epsilon", 1e-12))
    g = c.dy * scale
    if simplified:
        dx = r * (g - total * r * np.mean(g * total * r, axis=-1, keepdims=True))
    else:
        dx = standardise_gradient(centred, r, g, (-1,))
    of_sum = c.gradients[3] if len(c.gradients) > 3 else None
    if of_sum is not None:
        dx = dx + of_sum
    shift = [] if simplified else [unbroadcast(c.dy, scale.shape)]
    return [
        unbroadcast(dx, c.x.shape),
        unbroadcast(dx, skip.shape),
        unbroadcast(c.dy * centred * r, scale.shape),
        *shift,
        None if bias is None else unbroadcast(dx, bias.shape),
    ]


@register("BatchNormalization", "com.microsoft::BatchNormInternal")
def _batch_norm(c: Call) -> Gradients:
    _only_first_result(c)
    scale, mean, variance = c.operand(1), c.operand(3), c.operand(4)
    epsilon = c.attr("epsilon", 1e-5)
    others = (0, *range(2, c.x.ndim))
    channel = (1, -1, *(1,) * (c.x.ndim - 2))
    batch_statistics = (
        c.op.type.endswith("::BatchNormInternal")
        or bool(c.attr("training_mode", 0))
        or (0 < c.op.opset < 14 and sum(o is not None for o in c.outputs) > 1)
    )
    if batch_statistics:
        centred = c.x - c.x.mean(axis=others, keepdims=True)
        r = 1 / np.sqrt(np.mean(centred * centred, axis=others, keepdims=True) + epsilon)
    else:
        centred = c.x - mean.reshape(channel)
        r = 1 / np.sqrt(variance + epsilon).reshape(channel)
    g = c.dy * scale.reshape(channel)
    dx = None
    if c.wants(0):
        dx = standardise_gradient(centred, r, g, others) if batch_statistics else g * r
    dmean = dvariance = None
    if not batch_statistics:
        if c.wants(3):
            dmean = -np.sum(g * r, axis=others)
        if c.wants(4):
            dvariance = -0.5 * np.sum(g * centred * r**3, axis=others)
    dscale = np.sum(c.dy * centred * r, axis=others) if c.wants(1) else None
    dbias = np.sum(c.dy, axis=others) if c.wants(2) else None
    return [dx, dscale, dbias, dmean, dvariance]


@register("InstanceNormalization", "GroupNormalization")
def _group_norm(c: Call) -> Gradients:
    """An instance normalisation has one group per channel."""
    scale = c.operand(1)
    n, channels = c.x.shape[:2]
    groups = channels if c.op.type == "InstanceNormalization" else c.attr("num_groups")
    grouped = c.x.reshape(n, groups, -1)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred * centred, axis=2, keepdims=True) + c.attr("epsilon", 1e-5))
    per_group = scale.size != channels  # opset 18
    column = (1, -1, *(1,) * (c.x.ndim - 2))
    whole = np.repeat(scale, channels // groups).reshape(column) if per_group else scale.reshape(column)
    others = (0, *range(2, c.x.ndim))
    unit = (centred * r).reshape(c.x.shape)

    def fold(g: Array) -> Array:
        return g.reshape(groups, -1).sum(axis=1) if per_group else g

    return [
        standardise_gradient(centred, r, (c.dy * whole).reshape(grouped.shape), (2,)).reshape(c.x.shape),
        fold(np.sum(c.dy * unit, axis=others)),
        fold(np.sum(c.dy, axis=others)),
    ]


def _grouped(op: Op, x: Array, *parameters: Array) -> tuple[Array, tuple[Array, ...], Axes]:
    """com.microsoft::GroupNorm: channels, last or second, as (groups, channels of a group), and the axes of a group."""
    groups = int(op.attributes["groups"])
    at = x.ndim - 1 if op.attributes.get("channels_last", 1) else 1
    shape = (*x.shape[:at], groups, x.shape[at] // groups, *x.shape[at + 1 :])
    columns = tuple(v.reshape(groups, -1, *(1,) * (x.ndim - 1 - at)) for v in parameters)
    return x.reshape(shape), columns, tuple(a for a in range(1, len(shape)) if a != at)


def group_norm(op: Op, x: Array, scale: Array, bias: Array) -> Array:
    """ONNX Runtime's own group normalisation, with the SiLU that it may fuse."""
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    grouped, (column, shift), axes = _grouped(op, wide, scale, bias)
    centred = grouped - grouped.mean(axis=axes, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + op.attributes.get("epsilon", 1e-5))
    y = centred * r * column + shift
    return np.asarray(y * sigmoid(y) if op.attributes.get("activation", 0) else y).reshape(x.shape)


@register("com.microsoft::GroupNorm")
def _own_group_norm(c: Call) -> Gradients:
    scale, bias = c.operand(1), c.operand(2)
    grouped, (column, shift), axes = _grouped(c.op, c.x, scale, bias)
    centred = grouped - grouped.mean(axis=axes, keepdims=True)
    r = 1 / np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True) + c.attr("epsilon", 1e-5))
    dy = c.dy.reshape(grouped.shape)
    if c.attr("activation", 0):
        y = centred * r * column + shift
        dy = dy * sigmoid(y) * (1 + y * (1 - sigmoid(y)))
    return [
        standardise_gradient(centred, r, dy * column, axes).reshape(c.x.shape),
        unbroadcast(dy * centred * r, column.shape).reshape(scale.shape),
        unbroadcast(dy, column.shape).reshape(bias.shape),
    ]


@register("MeanVarianceNormalization")
def _mean_variance(c: Call) -> Gradients:
    axes = tuple(normalise_axis(int(a), c.x.ndim) for a in c.attr("axes", (0, 2, 3)))
    centred = c.x - c.x.mean(axis=axes, keepdims=True)
    r = 1 / (np.sqrt(np.mean(centred * centred, axis=axes, keepdims=True)) + 1e-9)
    return [standardise_gradient(centred, r, c.dy, axes)]


@register("LpNormalization")
def _power_norm(c: Call) -> Gradients:
    """y = x/‖x‖: the gradient less its part along d‖x‖; zero where the norm is."""
    axis, p = c.attr("axis", -1), c.attr("p", 2)
    norm = np.sum(np.abs(c.x) ** p, axis=axis, keepdims=True) ** (1 / p)
    y = np.divide(c.x, norm, out=np.zeros_like(c.x), where=norm != 0)
    slope = np.sign(c.x) if p == 1 else y
    g = c.dy - slope * np.sum(c.dy * y, axis=axis, keepdims=True)
    return [np.divide(g, norm, out=np.zeros_like(c.x), where=norm != 0)]


@register("com.microsoft::BiasSoftmax")
def _bias_softmax(c: Call) -> Gradients:
    """Over all dimensions from `axis` on."""
    axes = tuple(range(normalise_axis(c.attr("axis", 1), c.y.ndim), c.y.ndim))
    g = c.y * (c.dy - np.sum(c.dy * c.y, axis=axes, keepdims=True))
    return [g, unbroadcast(g, c.operand(1).shape)]


def _only_first_result(c: Call) -> None:
    if any(g is not None and np.any(g) for g in c.gradients[1:]):
        raise NoVjpError(
            f"operator {c.op.name} ({c.op.type}): only the first result is differentiable, "
            "but a gradient arrives for its statistics"
        )
