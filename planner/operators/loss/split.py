"""Losses while batch, space or classes are split (vocabulary-parallel cross-entropy).

Factors are those of the rules: scores [n, c, d0, d1, …].  Over split classes each row reduces its maximum, then,
packed, its sum of exponentials, what the rank that holds the label picks, and that label's weight.  A mean over a split
batch reduces two scalars.  The forward keeps what its backward needs of other ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.pieces import pieces
from planner.kernels.precision import widen
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, Received, ShardContext, all_reduce
from planner.operators.loss.gradient import states_ignored

__all__: list[str] = []

Operands = Sequence["Array | None"]
_Values = Generator[Collective, Received, Array]

CLASSES = "c"


def _over(factors: Sequence[str], value: Array, place: ShardContext, reduction: str = "sum") -> _Values:
    for factor in factors:
        value = yield from all_reduce(value, reduction, factor)
    return value


def _classes(place: ShardContext) -> list[str]:
    return [CLASSES] if place.splits(CLASSES) else []


def _batch(place: ShardContext) -> list[str]:
    """Batch and space, where they are split."""
    assert place.rule is not None
    return [f for f in place.rule.factors if f != CLASSES and place.splits(f)]


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels of a rank's rows as it sees them: whether they count, and which of them are classes that it holds."""

    reduction: str
    used: NDArray[np.bool_]
    held: NDArray[np.bool_]
    local: NDArray[Any]  # index among the rank's classes, 0 where it holds none
    weights: Array | None

    @classmethod
    def of(cls, op: Op, values: Array, labels: Array, weights: Array | None, place: ShardContext) -> _Labels:
        ignored = op.attributes.get("ignore_index")
        used = np.ones(labels.shape, dtype=bool) if ignored is None else np.asarray(labels != ignored)
        local = labels - place.offset.get(CLASSES, 0)
        held = used & (local >= 0) & (local < values.shape[1])
        return cls(string(op.attributes.get("reduction"), "mean"), used, held, np.where(held, local, 0), weights)

    def picked(self, values: Array) -> Array:
        """values[n, label, d…] as [n, d…] where this rank holds the label, else zero."""
        found = np.take_along_axis(values, np.expand_dims(self.local, 1), axis=1)
        return np.where(self.held, np.squeeze(found, 1), np.zeros((), dtype=values.dtype))

    def held_weight(self, dtype: np.dtype[Any]) -> Array:
        """Weight of every label that this rank holds, else zero."""
        if self.weights is None:
            return self.held.astype(dtype)
        return np.where(self.held, self.weights[self.local], 0).astype(dtype)

    def add(self, target: Array, values: Array) -> None:
        """target[n, label, d…] += values[n, d…] where this rank holds the label."""
        at = np.expand_dims(self.local, 1)
        new = np.take_along_axis(target, at, axis=1) + np.expand_dims(np.where(self.held, values, 0), 1)
        np.put_along_axis(target, at, new.astype(target.dtype), axis=1)

    def put(self, target: Array, values: Array) -> None:
        """target[n, label, d…] = values[n, d…] where this rank holds the label."""
        at = np.expand_dims(self.local, 1)
        old = np.take_along_axis(target, at, axis=1)
        new = np.where(np.expand_dims(self.held, 1), np.expand_dims(values, 1), old)
        np.put_along_axis(target, at, new.astype(target.dtype), axis=1)


def _read(op: Op, inputs: Operands, place: ShardContext, first: int = 0) -> tuple[Array, _Labels]:
    """Scores, or log-probabilities, from operand `first` on, with labels and weights."""
    values, labels = widen(inputs[first]), inputs[first + 1]
    weights = inputs[first + 2] if len(inputs) > first + 2 else None
    assert labels is not None
    return values, _Labels.of(states_ignored(op, inputs), values, labels, weights, place)


def _like(op: Op, found: Sequence[Array], operand: Array | None) -> list[Array | None]:
    """Results that are asked for, in the element type of the operand."""
    assert operand is not None
    return [r.astype(operand.dtype) if n else None for n, r in zip(op.outputs, found, strict=False)]


def _cross_entropy_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """The loss and the local log-probabilities; kept are the rows' logarithm of the sum, weights and their total, and
    the probability of all classes but the label: one less that of the label has no digits left where that is near one.
    """
    scores, labels = _read(op, inputs, place)
    classes = _classes(place)
    largest = yield from _over(classes, scores.max(axis=1), place, "max")
    parts = [_others(labels, scores, largest), labels.picked(scores) - np.where(labels.held, largest, 0)]
    if labels.weights is not None:
        parts.append(labels.held_weight(scores.dtype))
    rows = yield from _over(classes, np.stack(parts), place)
    weight = rows[2] if labels.weights is not None else labels.used.astype(scores.dtype)
    sums = rows[0] + np.where(labels.used, np.exp(rows[1]), 0)
    logarithm, rest = np.log(sums), rows[0] / sums
    each = np.where(labels.used, weight * (logarithm - rows[1]), 0).astype(scores.dtype)
    loss, total = each, np.ones((), dtype=scores.dtype)
    if labels.reduction == "mean":
        sums = yield from _over(_batch(place), np.array([each.sum(), weight.sum()], dtype=scores.dtype), place)
        loss, total = np.asarray(sums[0] / sums[1]), np.asarray(sums[1])
    elif labels.reduction == "sum":
        loss = np.asarray(each.sum())
    normaliser = logarithm + largest
    found = [loss, scores - np.expand_dims(normaliser, 1)] if any(op.outputs[1:]) else [loss]
    return [*_like(op, found, inputs[0]), *[None] * (len(op.outputs) - len(found)), normaliser, weight, total, rest]


def _others(labels: _Labels, scores: Array, largest: Array) -> Array:
    """Sums, over the classes but the label, of the exponentials of the scores less their row's largest."""
    sums = np.empty(largest.shape, dtype=scores.dtype)
    for part in pieces(len(scores), scores.size // max(1, len(scores))):
        e = scores[part] - np.expand_dims(largest[part], 1)
        np.exp(e, out=e)
        at = np.expand_dims(labels.local[part], 1)
        left = np.where(np.expand_dims(labels.held[part], 1), 0, np.take_along_axis(e, at, axis=1))
        np.put_along_axis(e, at, left.astype(e.dtype), axis=1)
        sums[part] = e.sum(axis=1)
    return sums


def _cross_entropy_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Of other ranks only what a gradient of the log-probabilities sums over the classes."""
    scores, labels = _read(op, inputs, place)
    normaliser, weight, total, rest = (widen(v) for v in outputs[len(op.outputs) :])
    saved = outputs[1] if len(op.outputs) > 1 else None
    if saved is not None:
        scores, normaliser, rest = widen(saved), np.zeros_like(normaliser), -np.expm1(labels.picked(widen(saved)))
    further = gradients[1] if len(gradients) > 1 else None
    if gradients[0] is None:
        dx = np.zeros_like(scores)
    else:
        dx = _through_scores(labels, scores, weight * (widen(gradients[0]) / total), rest, normaliser)
    if further is not None:
        sums = yield from _over(_classes(place), widen(further).sum(axis=1, keepdims=True), place)
        dx = dx + further - np.exp(scores - np.expand_dims(normaliser, 1)) * sums
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype, copy=False) if wanted[0] else None, *[None] * (len(inputs) - 1)]


def _through_scores(labels: _Labels, scores: Array, factor: Array, rest: Array, normaliser: Array) -> Array:
    """factor·(softmax − one-hot); `rest` is the probability of all classes but the label."""
    dx = np.empty(scores.shape, dtype=np.result_type(scores, factor))
    for part in pieces(len(scores), scores.size // max(1, len(scores))):
        p = np.exp(scores[part] - np.expand_dims(normaliser[part], 1))
        np.multiply(p, np.expand_dims(factor[part], 1), out=dx[part])
    labels.put(dx, -factor * rest)
    return dx


def _cross_entropy_gradient(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """dLoss, log-probabilities, labels and weights of exported training graphs.  A label's weight is known to the
    rank that holds its class."""
    log_p, labels = _read(op, inputs, place, first=1)
    factor = labels.used.astype(log_p.dtype)
    if labels.weights is not None:
        factor = yield from _over(_classes(place), labels.held_weight(log_p.dtype), place)
    if labels.reduction == "mean":
        total = yield from _over(_batch(place), np.asarray(factor.sum()), place)
        factor = factor / total
    rest = -np.expm1(labels.picked(log_p))
    dx = _through_scores(labels, log_p, factor * widen(inputs[0]), rest, np.zeros(labels.used.shape, log_p.dtype))
    added = inputs[5] if len(inputs) > 5 else None
    return _like(op, [dx if added is None else dx + added], inputs[1])


def _likelihood_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """What a rank picks is its term of a pending sum; a mean reduces its two sums at once and keeps the second."""
    log_p, labels = _read(op, inputs, place)
    each = labels.held_weight(log_p.dtype)
    loss, total = -each * labels.picked(log_p), np.ones((), dtype=log_p.dtype)
    if labels.reduction == "mean":
        sums = np.array([loss.sum(), each.sum()], dtype=log_p.dtype)
        sums = yield from _over([*_classes(place), *_batch(place)], sums, place)
        loss, total = np.asarray(sums[0] / sums[1]), np.asarray(sums[1])
    elif labels.reduction == "sum":
        loss = np.asarray(loss.sum())
    return [*_like(op, [loss], inputs[0]), total]


def _likelihood_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    log_p, labels = _read(op, inputs, place)
    dx = np.zeros_like(log_p)
    if gradients[0] is not None:
        labels.add(dx, -labels.held_weight(log_p.dtype) * (widen(gradients[0]) / widen(outputs[-1])))
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype) if wanted[0] else None, *[None] * (len(inputs) - 1)]
    yield  # never communicates


kernel(
    ["SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal"],
    _cross_entropy_forward,
    _cross_entropy_backward,
)
kernel(["NegativeLogLikelihoodLoss"], _likelihood_forward, _likelihood_backward)
kernel(
    ["com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad"],
    _cross_entropy_gradient,
)
