"""Losses while batch or classes are split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.verify.kernels.inner.registry import kernel
from planner.verify.kernels.spmd import Coroutine, ShardContext, all_reduce
from planner.verify.vjp.attributes import Array
from planner.verify.vjp.loss import cross_entropy_gradient, label_weights, picked
from planner.verify.vjp.norm import log_softmax

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _cross_entropy_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Mean loss over all shards, the same on every rank, and the local log-probabilities."""
    scores, labels, weights = _three(inputs)
    log_p = log_softmax(scores, 1)
    each = label_weights(op, labels, weights, scores.dtype)
    sums = np.array([-np.sum(each * picked(log_p, labels, each != 0)), np.sum(each)], dtype=scores.dtype)
    for factor in place.shards:
        sums = yield from all_reduce(sums, "sum", factor)
    loss = np.asarray(sums[0] / sums[1], dtype=scores.dtype)
    results: list[Array | None] = [loss, log_p]
    return results[: len(op.outputs)]


def _cross_entropy_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The gradient divides by the total weight of all shards."""
    scores, labels, weights = _three(inputs)
    log_p = outputs[1] if len(outputs) > 1 and outputs[1] is not None else log_softmax(scores, 1)
    each = label_weights(op, labels, weights, scores.dtype)
    total: Array = np.asarray(np.sum(each, dtype=scores.dtype))
    for factor in place.shards:
        total = yield from all_reduce(total, "sum", factor)
    dx = np.zeros_like(scores)
    if gradients[0] is not None:
        factor_of_each = each * np.asarray(gradients[0] / total, dtype=scores.dtype)
        dx = cross_entropy_gradient(log_p, labels, factor_of_each)
    further = gradients[1] if len(gradients) > 1 else None
    if further is not None:
        dx = dx + further - np.exp(log_p) * further.sum(axis=1, keepdims=True)
    return [dx if wanted[0] else None, *[None] * (len(inputs) - 1)]


def _three(inputs: Operands) -> tuple[Array, Array, Array | None]:
    scores, labels, weights = (*inputs, None)[:3]
    if scores is None or labels is None:
        raise ValueError("a cross-entropy needs scores and labels")
    return scores, labels, weights


kernel(["SoftmaxCrossEntropyLoss"], _cross_entropy_forward, _cross_entropy_backward)
