"""Cross-entropy: the negative log-likelihood of labels under scores [N, C, d…], in every reduction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.gradients import Call, register
from planner.kernels.pieces import by_rows
from planner.operators.normalization.gradient import log_softmax

__all__ = ["cross_entropy_gradient", "label_weights", "picked", "states_ignored"]

Gradients = list["Array | None"]


def states_ignored(op: Op, inputs: Sequence[Array | None]) -> Op:
    """The operator with the label to ignore as its attribute; ONNX Runtime's own types state it as an operand."""
    at = 4 if op.type.endswith("Grad") else 3
    given = inputs[at] if len(inputs) > at else None
    if given is None:
        return op
    return replace(op, attributes={**op.attributes, "ignore_index": int(given.reshape(()))})


def label_weights(op: Op, labels: Array, weights: Array | None, dtype: np.dtype[np.generic]) -> Array:
    """Weight of every label [N, d…]: of its class, and zero where the label is `ignore_index`."""
    ignored = op.attributes.get("ignore_index")
    used = np.ones(labels.shape, dtype=bool) if ignored is None else labels != ignored
    if weights is None:
        return used.astype(dtype)
    return np.asarray(np.where(used, weights[np.where(used, labels, 0)], 0)).astype(dtype)


def picked(values: Array, labels: Array, used: Array) -> Array:
    """values[n, label, d…] as [N, d…], zero where the label is not used."""
    safe = np.where(used, labels, 0)
    found = np.take_along_axis(values, np.expand_dims(safe, 1), axis=1)
    return np.asarray(np.where(used, np.squeeze(found, 1), 0))


def cross_entropy_gradient(log_probabilities: Array, labels: Array, factor: Array) -> Array:
    """factor·(softmax - one-hot) where `factor` [N, d…] is weight times incoming gradient."""
    wide = np.expand_dims(factor, 1)
    g = np.exp(log_probabilities) * wide
    safe = np.expand_dims(np.where(factor != 0, labels, 0), 1)
    held = np.expm1(np.take_along_axis(log_probabilities, safe, axis=1)) * wide
    np.put_along_axis(g, safe, held, axis=1)
    return np.asarray(g)


def _from_scores(scores: Array, labels: Array, factor: Array) -> Array:
    """The same from scores.  A probability near one is one less those of the other classes, to all digits."""
    g = scores - scores.max(axis=1, keepdims=True)
    np.exp(g, out=g)
    safe = np.expand_dims(np.where(factor != 0, labels, 0), 1)
    own = np.take_along_axis(g, safe, axis=1)
    np.put_along_axis(g, safe, 0.0, axis=1)
    others = g.sum(axis=1, keepdims=True)
    share = np.expand_dims(factor, 1) / (others + own)
    g *= share
    np.put_along_axis(g, safe, -others * share, axis=1)
    return np.asarray(g)


def _factor(c: Call, labels: Array, weights: Array | None) -> Array:
    each = label_weights(states_ignored(c.op, c.inputs), labels, weights, c.x.dtype)
    reduction = string(c.attr("reduction"), "mean")
    if reduction == "mean":
        total = each.sum()  # of no label the mean is no number, and has no gradient
        return np.asarray(each * (c.dy / total)) if total else np.zeros_like(each)
    return np.asarray(each * c.dy)


@register("SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal")
def _softmax_cross_entropy(c: Call) -> Gradients:
    labels, weights = c.operand(1), c.maybe(2)
    saved = c.outputs[1] if len(c.outputs) > 1 else None
    further = c.gradients[1] if len(c.gradients) > 1 else None
    factor = _factor(c, labels, weights)
    if further is None:
        dx = by_rows(_from_scores if saved is None else cross_entropy_gradient, c.x if saved is None else saved, labels,
                     factor)  # fmt: skip
    else:
        log_p = log_softmax(c.x, 1) if saved is None else saved
        dx = cross_entropy_gradient(log_p, labels, factor)
        dx = dx + further - np.exp(log_p) * further.sum(axis=1, keepdims=True)
    return [dx]


@register("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(c: Call) -> Gradients:
    labels, weights = c.operand(1), c.maybe(2)
    factor = _factor(c, labels, weights)
    dx = np.zeros_like(c.x)
    safe = np.expand_dims(np.where(factor != 0, labels, 0), 1)
    np.put_along_axis(dx, safe, -np.expand_dims(factor, 1), axis=1)
    return [dx]
