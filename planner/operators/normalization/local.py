"""Normalisations, softmax and losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis, string
from planner.kernels.local import in_double
from planner.kernels.pieces import by_rows, pieces
from planner.operators.loss.gradient import label_weights, picked

__all__ = ["standardised"]

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _need(inputs: Operands, *indices: int) -> list[Array]:
    return [np.asarray(inputs[i]) for i in indices]


def _maybe(inputs: Operands, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _mean_square(x: Array, axes: tuple[int, ...]) -> Array:
    if axes == (x.ndim - 1,) and x.shape[-1]:
        return np.asarray(np.einsum("...i,...i->...", x, x) / x.shape[-1])[..., None]
    return np.asarray(np.mean(np.square(x), axis=axes, keepdims=True))


def standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array, Array]:
    """((x - mean)·r, mean, r) with r = 1/√(variance + ε), over `axes`."""
    mean = x.mean(axis=axes, keepdims=True)
    unit = x - mean
    r = 1 / np.sqrt(_mean_square(unit, axes) + epsilon)
    unit *= r
    return unit, mean, r


def _layer_norm(op: Op, inputs: Operands) -> Results:
    (x, scale), bias = _need(inputs, 0, 1), _maybe(inputs, 2)
    axes = tuple(range(normalise_axis(op.attributes.get("axis", -1), x.ndim), x.ndim))
    epsilon = op.attributes.get("epsilon", 1e-5)
    if axes == (x.ndim - 1,) and x.ndim > 1 and scale.ndim < 2 and not any(op.outputs[1:]):

        def rows(part: Array) -> Array:
            y = standardised(part, (1,), epsilon)[0]
            y *= scale
            if bias is not None:
                y += bias
            return y

        return [by_rows(rows, x.reshape(-1, x.shape[-1])).reshape(x.shape)]
    y, mean, r = standardised(x, axes, epsilon)
    y *= scale
    if bias is not None:
        y += bias
    return [y, mean, r]


def _rms_norm(op: Op, inputs: Operands) -> Results:
    x, scale = _need(inputs, 0, 1)
    axes = tuple(range(normalise_axis(op.attributes.get("axis", -1), x.ndim), x.ndim))
    r = 1 / np.sqrt(_mean_square(x, axes) + op.attributes.get("epsilon", 1e-5))
    y = x * r
    y *= scale
    return [y, r]


def _skip_norm(op: Op, inputs: Operands) -> Results:
    """norm(x + skip + bias), mean, 1/deviation, and the sum."""
    simplified = op.type.endswith("SkipSimplifiedLayerNormalization")
    x, skip, scale = _need(inputs, 0, 1, 2)
    shift, bias = (None, _maybe(inputs, 3)) if simplified else (_maybe(inputs, 3), _maybe(inputs, 4))
    total = x + skip
    if bias is not None:
        total += bias
    epsilon, axes = op.attributes.get("epsilon", 1e-12), (x.ndim - 1,)
    if simplified:
        mean, r = None, 1 / np.sqrt(_mean_square(total, axes) + epsilon)
        y = total * r
    else:
        y, mean, r = standardised(total, axes, epsilon)
    y *= scale
    if shift is not None:
        y += shift
    return [y, mean, r, total]


def _batch_norm(op: Op, inputs: Operands) -> Results | None:
    x, scale, bias, mean, variance = _need(inputs, 0, 1, 2, 3, 4)
    epsilon = op.attributes.get("epsilon", 1e-5)
    column = (-1, *(1,) * (x.ndim - 2))
    if op.attributes.get("training_mode", 0) and op.opset >= 14:
        y, batch, r = standardised(x, (0, *range(2, x.ndim)), epsilon)
        y *= scale.reshape(column)
        y += bias.reshape(column)
        momentum = op.attributes.get("momentum", 0.9)
        seen = batch.reshape(-1), 1 / np.square(r.reshape(-1)) - epsilon
        return [y, *(old * momentum + new * (1 - momentum) for old, new in zip((mean, variance), seen, strict=True))]
    if op.attributes.get("training_mode", 0) or any(op.outputs[1:]) or x.ndim < 2:
        return None
    factor = scale / np.sqrt(variance + epsilon)
    y = x * factor.reshape(column)
    y += (bias - mean * factor).reshape(column)
    return [y]


def _group_norm(op: Op, inputs: Operands) -> Results:
    """Instances are groups of one channel; before opset 21 a group had one scale."""
    x, scale, bias = _need(inputs, 0, 1, 2)
    channels = x.shape[1]
    groups = channels if op.type == "InstanceNormalization" else int(op.attributes["num_groups"])
    y = standardised(x.reshape(x.shape[0], groups, -1), (2,), op.attributes.get("epsilon", 1e-5))[0].reshape(x.shape)
    each = channels // scale.size
    column = (-1, *(1,) * (x.ndim - 2))
    y *= np.repeat(scale, each).reshape(column)
    y += np.repeat(bias, each).reshape(column)
    return [y]


def _axes(op: Op, x: Array) -> tuple[int, ...]:
    """Before opset 13 all dimensions from `axis` on were one."""
    if 0 < op.opset < 13:
        return tuple(range(normalise_axis(op.attributes.get("axis", 1), x.ndim), x.ndim))
    return (normalise_axis(op.attributes.get("axis", -1), x.ndim),)


def _softmax(op: Op, inputs: Operands) -> Results:
    (x,) = _need(inputs, 0)
    axes = _axes(op, x)

    def rows(part: Array) -> Array:
        y = part - part.max(axis=axes, keepdims=True)
        np.exp(y, out=y)
        y /= y.sum(axis=axes, keepdims=True)
        return y

    if axes == (x.ndim - 1,) and x.ndim > 2:  # many short rows
        axes = (1,)
        return [by_rows(rows, x.reshape(-1, x.shape[-1])).reshape(x.shape)]
    return [rows(x) if 0 in axes else by_rows(rows, x)]


def _log_softmax(op: Op, inputs: Operands) -> Results:
    (x,) = _need(inputs, 0)
    axes = _axes(op, x)
    y = x - x.max(axis=axes, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axes, keepdims=True))
    return [y]


def _hardmax(op: Op, inputs: Operands) -> Results:
    """One at the first maximum."""
    (x,) = _need(inputs, 0)
    axes = _axes(op, x)
    order = (*(d for d in range(x.ndim) if d not in axes), *axes)
    moved = x.transpose(order)
    rows = moved.reshape(math.prod(moved.shape[: x.ndim - len(axes)]), -1)
    y = np.zeros(rows.shape)
    y[np.arange(len(rows)), rows.argmax(axis=1)] = 1
    return [y.reshape(moved.shape).transpose(np.argsort(order))]


def _reduced(op: Op, losses: Array, weights: Array) -> Array:
    match string(op.attributes.get("reduction"), "mean"):
        case "none":
            return losses
        case "sum":
            return np.asarray(losses.sum())
    return np.asarray(losses.sum() / weights.sum())


def _cross_entropy(op: Op, inputs: Operands) -> Results:
    """What is picked from the scores less their normaliser; log-probabilities only where they are read."""
    scores, labels = _need(inputs, 0, 1)
    normaliser = np.empty((len(scores), 1, *scores.shape[2:]))
    for part in pieces(len(scores), scores.size // max(1, len(scores))):
        highest = scores[part].max(axis=1, keepdims=True)
        e = scores[part] - highest
        np.exp(e, out=e)
        normaliser[part] = np.log(e.sum(axis=1, keepdims=True)) + highest
    log_p = scores - normaliser if any(op.outputs[1:]) else None
    return [_negative(op, scores, normaliser[:, 0], labels, _maybe(inputs, 2)), log_p]


def _negative(op: Op, scores: Array, normaliser: Array, labels: Array, weights: Array | None) -> Array:
    each = label_weights(op, labels, weights, scores.dtype)
    ignored = op.attributes.get("ignore_index")
    used = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    return _reduced(op, each * np.where(used, normaliser - picked(scores, labels, used), 0.0), each)


def _negative_log_likelihood(op: Op, inputs: Operands) -> Results:
    log_p, labels = _need(inputs, 0, 1)
    return [_negative(op, log_p, np.zeros(labels.shape), labels, _maybe(inputs, 2))]


in_double(
    {
        "BatchNormalization": _batch_norm,
        "GroupNormalization": _group_norm,
        "Hardmax": _hardmax,
        "InstanceNormalization": _group_norm,
        "LayerNormalization": _layer_norm,
        "LogSoftmax": _log_softmax,
        "NegativeLogLikelihoodLoss": _negative_log_likelihood,
        "RMSNormalization": _rms_norm,
        "SimplifiedLayerNormalization": _rms_norm,
        "Softmax": _softmax,
        "SoftmaxCrossEntropyLoss": _cross_entropy,
        "com.microsoft::SimplifiedLayerNormalization": _rms_norm,
        "com.microsoft::SkipLayerNormalization": _skip_norm,
        "com.microsoft::SkipSimplifiedLayerNormalization": _skip_norm,
    }
)
