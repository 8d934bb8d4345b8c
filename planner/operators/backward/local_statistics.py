"""Normalisations, softmax and losses of which ONNX Runtime's public CPU build has no kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.local import with_result_shapes
from planner.kernels.session import NoKernelError, run_node
from planner.operators.loss.gradient import states_ignored
from planner.operators.normalization.gradient import group_norm, softmax, standardise_gradient

__all__: list[str] = []

Shapes = Sequence["tuple[int, ...] | None"]
Results = list["Array | None"]
_Kernel = Callable[[Op, Sequence["Array | None"], "Shapes | None"], Results]

_CROSS_ENTROPY_OPSET = 13  # of ONNX's operator that stands for ONNX Runtime's own


def _need(op: Op, inputs: Sequence[Array | None], index: int) -> Array:
    value = inputs[index] if index < len(inputs) else None
    if value is None:
        raise NoKernelError(f"operator {op.name} ({op.type}): operand {index} is needed and absent")
    return value


def _batch_norm(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(X, scale, bias, mean, variance) → Y, running mean and variance, mean and 1/deviation of the batch."""
    x, scale, bias, mean, variance = (_need(op, inputs, i) for i in range(5))
    axes, channel = (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    momentum = op.attributes.get("momentum", 0.9)
    batch, spread = x.mean(axis=axes), x.var(axis=axes)
    r = 1 / np.sqrt(spread + op.attributes.get("epsilon", 1e-5))
    y = (x - batch.reshape(channel)) * (r * scale).reshape(channel) + bias.reshape(channel)
    running = [old * momentum + new * (1 - momentum) for old, new in ((mean, batch), (variance, spread))]
    return [y.astype(x.dtype), *(v.astype(mean.dtype) for v in (*running, batch, r))]


def _batch_norm_grad(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(dY, X, scale, mean, 1/deviation) → dX, dscale, dbias."""
    dy, x, scale, mean, r = (_need(op, inputs, i) for i in range(5))
    axes, channel = (0, *range(2, x.ndim)), (1, -1, *(1,) * (x.ndim - 2))
    centred, r = x - mean.reshape(channel), r.reshape(channel)
    dx = standardise_gradient(centred, r, dy * scale.reshape(channel), axes)
    return [dx.astype(x.dtype), np.sum(dy * centred * r, axis=axes), np.sum(dy, axis=axes)]


def _group_norm(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    x, scale, bias = (_need(op, inputs, i) for i in range(3))
    return [group_norm(op, x, scale, bias).astype(x.dtype)]


def _bias_softmax(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """Softmax of a sum, over all dimensions from `axis` on."""
    x = _need(op, inputs, 0) + _need(op, inputs, 1)
    cut = normalise_axis(op.attributes.get("axis", 1), x.ndim)
    return [softmax(x.reshape(math.prod(x.shape[:cut]), -1), 1).reshape(x.shape)]


def _mean_variance(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """ONNX Runtime computes it in single precision only."""
    x = _need(op, inputs, 0)
    if x.dtype == np.float32:
        return run_node(op, inputs)
    axes = tuple(int(a) for a in op.attributes.get("axes", (0, 2, 3)))
    wide = x.astype(np.float32) if x.dtype.itemsize < 4 else x
    centred = wide - wide.mean(axis=axes, keepdims=True)
    return [(centred / (np.sqrt(np.mean(centred**2, axis=axes, keepdims=True)) + 1e-9)).astype(x.dtype)]


def _cross_entropy(op: Op, inputs: Sequence[Array | None], shapes: Shapes | None) -> Results:
    """(scores, labels, weights, label to ignore) → loss, log-probabilities: ONNX's operator with an operand more."""
    forward = states_ignored(op, inputs)
    attributes = {k: v for k, v in forward.attributes.items() if k in ("ignore_index", "reduction")}
    own = replace(
        forward, type="SoftmaxCrossEntropyLoss", inputs=op.inputs[:3], attributes=attributes, opset=_CROSS_ENTROPY_OPSET
    )
    return run_node(own, inputs[:3])


with_result_shapes(
    {
        "MeanVarianceNormalization": _mean_variance,
        "com.microsoft::BatchNormInternal": _batch_norm,
        "com.microsoft::BatchNormalizationGrad": _batch_norm_grad,
        "com.microsoft::BiasSoftmax": _bias_softmax,
        "com.microsoft::GroupNorm": _group_norm,
        "com.microsoft::SoftmaxCrossEntropyLossInternal": _cross_entropy,
    }
)
