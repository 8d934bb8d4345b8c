"""Losses while batch, space or classes are split (vocabulary-parallel cross-entropy).

Factors are those of the rules: scores [n, c, d0, d1, …].  Over split classes each row reduces its maximum, then,
packed, its sum of exponentials, what the rank that holds the label picks, and that label's weight.  A mean over a split
batch reduces two scalars.  The forward keeps what its backward needs of other ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.pieces import pieces
from planner.kernels.precision import widen
from planner.kernels.shared import Call, Values, numpy_call, shared
from planner.kernels.split import kernel
from planner.kernels.spmd import Collective, Coroutine, ShardContext

__all__: list[str] = []

Operands = Sequence["Array | None"]

CLASSES = "c"


def _classes(c: Call) -> list[str]:
    return [CLASSES] if c.place.splits(CLASSES) else []


def _batch(c: Call) -> list[str]:
    """Batch and space, where they are split."""
    return [f for f in c.rule.factors if f != CLASSES and c.place.splits(f)]


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels of a rank's rows as it sees them: whether they count (None where all do), and which of them are classes
    that it holds."""

    xp: Any
    reduction: str
    used: Any
    held: Any
    local: Any  # index among the rank's classes, 0 where it holds none
    weights: Any

    @classmethod
    def of(cls, c: Call, first: int = 0) -> _Labels:
        """Of the operands behind scores, or log-probabilities, which operand `first` is: labels, weights, and in ONNX
        Runtime's own types the label to ignore."""
        values, labels, xp = c.operand(first), c.operand(first + 1), c.xp
        ignored = c.attr("ignore_index")
        if c.maybe(first + 3) is not None:
            ignored = xp.astype(xp.reshape(c.operand(first + 3), ()), labels.dtype)
        used = None if ignored is None else labels != ignored
        local = labels - c.place.offset.get(CLASSES, 0)
        held = (local > -1) & (local < values.shape[1])
        held = held if used is None else held & used
        local = xp.where(held, xp.astype(local, xp.int64), xp.asarray(0, dtype=xp.int64))
        return cls(xp, string(c.attr("reduction"), "mean"), used, held, local, c.maybe(first + 2))

    def picked(self, values: Any) -> Any:
        """values[n, label, d…] as [n, d…] where this rank holds the label, else zero."""
        xp = self.xp
        found = xp.take_along_axis(values, xp.expand_dims(self.local, axis=1), axis=1)
        return xp.where(self.held, xp.squeeze(found, axis=1), xp.asarray(0, dtype=values.dtype))

    def held_weight(self, dtype: Any) -> Any:
        """Weight of every label that this rank holds, else zero."""
        xp = self.xp
        if self.weights is None:
            return xp.astype(self.held, dtype)
        found = xp.astype(xp.take(self.weights, self.local, axis=0), dtype)
        return xp.where(self.held, found, xp.asarray(0, dtype=dtype))

    def counted(self, values: Any) -> Any:
        """`values` [n, d…] of the labels that count, else zero."""
        return values if self.used is None else self.xp.where(self.used, values, self.xp.asarray(0, dtype=values.dtype))

    def ones(self, like: Any) -> Any:
        """One for every label that counts."""
        return self.xp.ones_like(like) if self.used is None else self.xp.astype(self.used, like.dtype)

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


def _packed(c: Call, parts: Sequence[Any], factors: Iterable[str]) -> Generator[Collective, Any, Sequence[Any]]:
    """Summed over the ranks that split the factors, in one message for several values."""
    factors = list(factors)
    if not factors:
        return parts
    found = yield from c.over(c.xp.stack(parts, axis=0), factors)
    return [found[i] for i in range(len(parts))]


def _reduced(c: Call, labels: _Labels, each: Any, weight: Any, factors: Iterable[str]) -> Values:
    """The loss from that of every row and the rows' weights, and what a mean divides by."""
    if labels.reduction != "mean":
        one = c.xp.asarray(1, dtype=each.dtype)
        return each if labels.reduction == "none" else c.xp.sum(each), one
    total, count = yield from _packed(c, [c.xp.sum(each), c.xp.sum(weight)], factors)
    return total / count, count


def _cross_entropy_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """Of other ranks only what a gradient of the log-probabilities sums over the classes."""
    c = numpy_call(op, inputs, place)
    scores, labels = c.widened(), _Labels.of(c)
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
        sums = yield from c.over(widen(further).sum(axis=1, keepdims=True), _classes(c))
        dx = dx + further - np.exp(scores - np.expand_dims(normaliser, 1)) * sums
    assert inputs[0] is not None
    return [dx.astype(inputs[0].dtype, copy=False) if wanted[0] else None, *[None] * (len(inputs) - 1)]


@shared(
    "SoftmaxCrossEntropyLoss",
    "com.microsoft::SoftmaxCrossEntropyLossInternal",
    backward=_cross_entropy_backward,
)
def _cross_entropy(c: Call) -> Coroutine:
    """The loss and the local log-probabilities; kept are the rows' logarithm of the sum, weights and their total, and
    the probability of all classes but the label: one less that of the label has no digits left where that is near one.
    """
    scores, labels, xp = c.widened(), _Labels.of(c), c.xp
    classes = _classes(c)
    # What is subtracted from all scores of a row changes nothing, so that no gradient has to pass through it.
    largest = yield from c.over(c.still(xp.max(scores, axis=1, keepdims=True)), classes, "max")
    shifted = scores - largest
    parts = [_others(c, labels, shifted), labels.picked(shifted)]
    if labels.weights is not None:
        parts.append(labels.held_weight(scores.dtype))
    del shifted  # virtual ranks wait here for each other: none should hold a second copy of its scores meanwhile
    others, own, *weights = yield from _packed(c, parts, classes)
    sums = others + labels.counted(xp.exp(own))
    logarithm = xp.log(sums)
    weight = weights[0] if weights else labels.ones(own)
    each = labels.counted(weight * (logarithm - own))
    loss, total = yield from _reduced(c, labels, each, weight, _batch(c))
    found = [c.like(loss)]
    if any(c.op.outputs[1:]):
        all_classes = logarithm
        if c.followed and classes:
            # Of these every rank has its part, and of the loss all have the same: what a gradient of both passes
            # back through one sum would be neither, so that there are two.
            mine = xp.sum(xp.exp(scores - largest), axis=1)
            all_classes = xp.log(xp.sum(xp.stack((yield from c.gathered(mine, CLASSES, terms=True)), axis=0), axis=0))
        found.append(c.like(scores - largest - xp.expand_dims(all_classes, axis=1)))
    absent = [None] * (len(c.op.outputs) - len(found))
    return [*found, *absent, logarithm + xp.squeeze(largest, axis=1), weight, total, others / sums]


def _others(c: Call, labels: _Labels, shifted: Any) -> Any:
    """Sums, over the classes but the label, of the exponentials."""
    xp, count = c.xp, shifted.shape[1]
    at = xp.where(labels.held, labels.local, xp.asarray(-1, dtype=xp.int64))
    places = xp.reshape(c.arange(count, shifted), (count, *(1,) * (shifted.ndim - 2)))
    left = xp.where(places == xp.expand_dims(at, axis=1), xp.asarray(0, dtype=shifted.dtype), xp.exp(shifted))
    return xp.sum(left, axis=1)


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
    c = numpy_call(op, inputs, place)
    log_p, labels = c.widened(1), _Labels.of(c, first=1)
    own = labels.picked(log_p)
    factor = labels.ones(own)
    if labels.weights is not None:
        factor = yield from c.over(labels.held_weight(log_p.dtype), _classes(c))
    if labels.reduction == "mean":
        factor = factor / (yield from c.over(np.asarray(factor.sum()), _batch(c)))
    dx = _through_scores(labels, log_p, factor * c.widened(), -np.expm1(own), np.zeros_like(own))
    added = c.maybe(5)
    return [c.like(dx if added is None else dx + added, 1) if op.outputs[0] else None]


def _likelihood_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    c = numpy_call(op, inputs, place)
    log_p, labels = c.widened(), _Labels.of(c)
    dx = np.zeros_like(log_p)
    if gradients[0] is not None:
        labels.add(dx, -labels.held_weight(log_p.dtype) * (widen(gradients[0]) / widen(outputs[-1])))
    return [c.like(dx) if wanted[0] else None, *[None] * (len(inputs) - 1)]
    yield  # never communicates


@shared("NegativeLogLikelihoodLoss", backward=_likelihood_backward)
def _likelihood(c: Call) -> Coroutine:
    """What a rank picks is its term of a pending sum; a mean reduces its two sums at once and keeps the second."""
    log_p, labels = c.widened(), _Labels.of(c)
    weight = labels.held_weight(log_p.dtype)
    each = -(weight * labels.picked(log_p))
    loss, total = yield from _reduced(c, labels, each, weight, [*_classes(c), *_batch(c)])
    return [c.like(loss), total]


kernel(
    ["com.microsoft::SoftmaxCrossEntropyLossGrad", "com.microsoft::SoftmaxCrossEntropyLossInternalGrad"],
    _cross_entropy_gradient,
)
