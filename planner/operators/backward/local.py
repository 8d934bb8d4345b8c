"""Gradient operators that training exporters write into graphs (ONNX Runtime training, domain com.microsoft).

Public runtimes lack them; their formulas are those of the vector-Jacobian products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, axes_of, integers, normalise_axis, slices_of, string, window
from planner.kernels.gradients import unbroadcast
from planner.kernels.local import with_result_shapes
from planner.kernels.session import NoKernelError
from planner.operators.convolution.gradient import conv_input_gradient, conv_weight_gradient
from planner.operators.elementwise.gradient import gelu_gradient, sigmoid
from planner.operators.indexing.gradient import gather_gradient
from planner.operators.layout.gradient import slice_gradient
from planner.operators.loss.gradient import cross_entropy_gradient, label_weights, states_ignored
from planner.operators.normalization.gradient import softmax_gradient, standardise_gradient
from planner.operators.pooling.gradient import average_pool_gradient

__all__: list[str] = []

Shapes = Sequence["tuple[int, ...] | None"]
Results = list["Array | None"]
Kernel = Callable[[Op, Sequence["Array | None"], "Shapes | None"], Results]


def _need(op: Op, inputs: Sequence[Array | None], index: int) -> Array:
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise NoKernelError(f"operator {op.name} ({op.type}): operand {index} is needed and absent")
    return value


def _maybe(inputs: Sequence[Array | None], index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _pointwise(function: Callable[[Array, Array], Array]) -> Kernel:
    """dX from the gradient and what the operator saved."""

    def kernel(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
        dy, saved = _need(op, inputs, 0), _need(op, inputs, 1)
        return [function(dy, saved).astype(dy.dtype, copy=False)]

    return kernel


def _softmax_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    dy, y = _need(op, inputs, 0), _need(op, inputs, 1)
    if op.type.endswith("_13"):
        axis, flat = op.attributes.get("axis", -1), y.shape
    else:  # the operand was seen as a matrix, cut at `axis`
        cut = normalise_axis(op.attributes.get("axis", 1), y.ndim)
        axis, flat = 1, (math.prod(y.shape[:cut]), math.prod(y.shape[cut:]))
    g, v = dy.reshape(flat), y.reshape(flat)
    if "LogSoftmax" in op.type:
        dx = g - np.exp(v) * g.sum(axis=axis, keepdims=True)
    else:
        dx = softmax_gradient(v, g, axis)
    return [dx.reshape(y.shape)]


def _layer_norm_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, X, scale, mean, 1/deviation) → dX, dscale, dbias."""
    dy, x, scale, mean, r = (_need(op, inputs, i) for i in range(5))
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    one_shape = (*x.shape[:axis], *(1,) * len(axes))
    centred, r = x - mean.reshape(one_shape), r.reshape(one_shape)
    dx = standardise_gradient(centred, r, dy * scale, axes)
    return [dx, unbroadcast(dy * centred * r, scale.shape), unbroadcast(dy, scale.shape)]


def _cross_entropy_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, log-probabilities, labels, weights, label to ignore, what is added) → dX."""
    dy, log_p, labels = (_need(op, inputs, i) for i in range(3))
    each = label_weights(states_ignored(op, inputs), labels, _maybe(inputs, 3), log_p.dtype)
    factor = each * (dy / each.sum() if string(op.attributes.get("reduction"), "mean") == "mean" else dy)
    dx = cross_entropy_gradient(log_p, labels, factor.astype(log_p.dtype))
    added = _maybe(inputs, 5)
    return [dx if added is None else dx + added]


def _gather_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(shape of X, indices, dY) → dX."""
    shape = integers(op, inputs, 0, "shape") or ()
    if shapes is not None and shapes[0] is not None:
        shape = shapes[0]
    return [gather_gradient(_need(op, inputs, 2), _need(op, inputs, 1), op.attributes.get("axis", 0), shape)]


def _slice_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, shape of X, starts, ends, axes, steps) → dX."""
    shape = integers(op, inputs, 1, "shape") or ()
    if shapes is not None and shapes[0] is not None:
        shape = shapes[0]
    return [slice_gradient(_need(op, inputs, 0), slices_of(op, inputs, shape, first=2), shape)]


def _conv_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, X, W) → dX, dW, dB."""
    dy, x, weight = (_need(op, inputs, i) for i in range(3))
    groups = op.attributes.get("group", 1)
    spatial = x.shape[2:]
    w = window(op, spatial, weight.shape[2:], dy.shape[2:])
    wanted = [bool(name) for name in op.outputs] + [False, False]
    return [
        conv_input_gradient(dy, weight, w, groups, spatial) if wanted[0] else None,
        conv_weight_gradient(x, dy, w, groups, weight.shape) if wanted[1] else None,
        np.asarray(dy.sum(axis=(0, *range(2, dy.ndim)))) if wanted[2] else None,
    ]


def _max_pool_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, indices into the flattened X) → dX, whose shape only the graph knows."""
    dy, indices = _need(op, inputs, 0), _need(op, inputs, 1)
    if shapes is None or shapes[0] is None:
        raise NoKernelError(f"operator {op.name} ({op.type}): the shape of its result must be given")
    shape = shapes[0]
    dx = np.zeros(math.prod(shape), dtype=dy.dtype)
    # Indices count in the whole X; within one image they are the same on every shard of batch or channels.
    image = math.prod(shape[2:])
    first = np.arange(math.prod(shape[:2])).reshape(*shape[:2], *(1,) * len(shape[2:])) * image
    np.add.at(dx, (indices % image + first).reshape(-1), dy.reshape(-1))
    return [dx.reshape(shape)]


def _average_pool_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """dY → dX, whose shape only the graph knows."""
    if shapes is None or shapes[0] is None:
        raise NoKernelError(f"operator {op.name} ({op.type}): the shape of its result must be given")
    return [average_pool_gradient(op, _need(op, inputs, 0), shapes[0])]


def _rms_norm_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, X, scale, 1/root mean square) → dX, dscale."""
    dy, x, scale, r = (_need(op, inputs, i) for i in range(4))
    axis = normalise_axis(op.attributes.get("axis", -1), x.ndim)
    axes = tuple(range(axis, x.ndim))
    r = r.reshape(*x.shape[:axis], *(1,) * len(axes))
    unit, g = x * r, dy * scale
    return [r * (g - unit * np.mean(g * unit, axis=axes, keepdims=True)), unbroadcast(dy * unit, scale.shape)]


def _quick_gelu_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, X) → dX of x·sigmoid(αx)."""
    dy, x = _need(op, inputs, 0), _need(op, inputs, 1)
    alpha = op.attributes.get("alpha", 1.702)
    s = sigmoid(alpha * x)
    return [np.asarray(dy * s * (1 + alpha * x * (1 - s)))]


def _leaky_relu_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, Y) → dX."""
    dy, y = _need(op, inputs, 0), _need(op, inputs, 1)
    return [np.where(y > 0, dy, dy * dy.dtype.type(op.attributes.get("alpha", 0.01)))]


def _reduce_sum(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(X, axes) → sum; without axes nothing or everything is reduced, as `noop_with_empty_axes` says."""
    x = _need(op, inputs, 0)
    axes = axes_of(op, inputs, 1, x.ndim)
    if not axes:
        axes = () if op.attributes.get("noop_with_empty_axes", 0) else None
    return [np.asarray(x.sum(axis=axes, keepdims=bool(op.attributes.get("keepdims", 1))))]


def _scale(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    x, factor = _need(op, inputs, 0), _need(op, inputs, 1).reshape(()).astype(_need(op, inputs, 0).dtype)
    return [np.asarray(x / factor if op.attributes.get("scale_down", 0) else x * factor)]


with_result_shapes(
    {
        "AveragePoolGrad": _average_pool_grad,
        "MaxPoolGrad": _max_pool_grad,
        "com.microsoft::AveragePoolGrad": _average_pool_grad,
        "com.microsoft::ConvGrad": _conv_grad,
        "com.microsoft::FastGeluGrad": _pointwise(lambda dy, x: dy * gelu_gradient(x, tanh=True)),
        "com.microsoft::GatherGrad": _gather_grad,
        "com.microsoft::GeluGrad": _pointwise(lambda dy, x: dy * gelu_gradient(x, tanh=False)),
        "com.microsoft::LayerNormalizationGrad": _layer_norm_grad,
        "com.microsoft::LeakyReluGrad": _leaky_relu_grad,
        "com.microsoft::LogSoftmaxGrad": _softmax_grad,
        "com.microsoft::LogSoftmaxGrad_13": _softmax_grad,
        "com.microsoft::MaxPoolGrad": _max_pool_grad,
        "com.microsoft::QuickGeluGrad": _quick_gelu_grad,
        "com.microsoft::ReduceSumTraining": _reduce_sum,
        "com.microsoft::ReluGrad": _pointwise(lambda dy, y: dy * (y > 0)),
        "com.microsoft::Scale": _scale,
        "com.microsoft::SigmoidGrad": _pointwise(lambda dy, y: dy * y * (1 - y)),
        "com.microsoft::SimplifiedLayerNormalizationGrad": _rms_norm_grad,
        "com.microsoft::SliceGrad": _slice_grad,
        "com.microsoft::SoftmaxCrossEntropyLossGrad": _cross_entropy_grad,
        "com.microsoft::SoftmaxCrossEntropyLossInternalGrad": _cross_entropy_grad,
        "com.microsoft::SoftmaxGrad": _softmax_grad,
        "com.microsoft::SoftmaxGrad_13": _softmax_grad,
        "com.microsoft::TanhGrad": _pointwise(lambda dy, y: dy * (1 - y * y)),
    }
)
