"""Losses while batch, space or classes are split (vocabulary-parallel cross-entropy): over split classes each row
reduces its maximum, then, packed, its sum of exponentials, what the rank that holds the label picks, and that label's
weight; a mean over a split batch reduces two scalars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.emit.onnx.ranks.local import Local, over
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.verify.data import numpy_dtype

__all__: list[str] = []

_CLASSES = "c"


def _classes(here: Local) -> list[str]:
    return [_CLASSES] if here.place.splits(_CLASSES) else []


def _batch(here: Local) -> list[str]:
    """Batch and space, where they are split."""
    return [f for f in here.rule.factors if f != _CLASSES and here.place.splits(f)]


def _integer(w: Writer, value: int, like: Value) -> Value:
    return w.constant(np.array(value, dtype=numpy_dtype(like.dtype)))


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels of a rank's rows: whether they count, which of them are classes that it holds, and which of its classes
    they are, 0 where it holds none."""

    used: Value | None
    held: Value
    local: Value
    weights: Value | None

    @classmethod
    def of(cls, w: Writer, here: Local, scores: Value, operands: Operands) -> _Labels:
        labels = needed(operands[1])
        weights = operands[2] if len(operands) > 2 else None
        ignored = here.op.attributes.get("ignore_index")
        used = None
        if ignored is not None:
            used = w.each("Not", w.join("Equal", labels, _integer(w, int(ignored), labels), "bool"))
        local = w.join("Sub", labels, _integer(w, here.place.offset.get(_CLASSES, 0), labels))
        above = w.join("Less", local, _integer(w, scores.dims[1], labels), "bool")
        held = w.join("And", above, w.join("Greater", local, _integer(w, -1, labels), "bool"))
        held = held if used is None else w.join("And", held, used)
        return cls(used, held, w.where(held, local, _integer(w, 0, labels)), weights)

    def picked(self, w: Writer, values: Value) -> Value:
        """values[n, label, d…] as [n, d…] where this rank holds the label, else zero."""
        at = w.expand(self.local, 1)
        found = w.op("GatherElements", [values, at], values.dtype, at.shape, axis=1)
        return w.where(self.held, w.reshape(found, self.local.dims), w.number(0, values))

    def held_weight(self, w: Writer, like: Value) -> Value:
        """Weight of every label that this rank holds, else zero."""
        if self.weights is None:
            return w.cast(self.held, like.dtype)
        found = w.cast(w.gather(self.weights, self.local, 0), like.dtype)
        return w.where(self.held, found, w.number(0, like))

    def counted(self, w: Writer, like: Value) -> Value:
        """One for every label that counts."""
        if self.used is None:
            return w.filled(self.local.dims, like.dtype, 1)
        return w.cast(self.used, like.dtype)


def _packed(w: Writer, parts: Sequence[Value], factors: Sequence[str], here: Local) -> list[Value]:
    """All-reduced together: one message for several values."""
    stacked = w.concat([w.reshape(p, (1, *p.dims)) for p in parts], 0)
    summed = over(w, stacked, factors, here)
    return [w.reshape(w.slice(summed, 0, i, i + 1), p.dims) for i, p in enumerate(parts)]


def _sum(w: Writer, x: Value) -> Value:
    return w.reshape(w.reduce("ReduceSum", x, range(x.rank)), ())


def _reduced(w: Writer, here: Local, each: Value, weight: Value, factors: Sequence[str]) -> Value:
    """The loss from that of every row and the rows' weights."""
    reduction = _text(here.op.attributes.get("reduction", "mean"))
    if reduction == "none":
        return each
    if reduction == "sum":
        return _sum(w, each)
    numerator, denominator = _packed(w, [_sum(w, each), _sum(w, weight)], factors, here)
    return w.join("Div", numerator, denominator)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@lowers("SoftmaxCrossEntropyLoss")
def _cross_entropy(w: Writer, here: Local, operands: Operands) -> list[Value]:
    w.need(13)
    scores = w.widened(needed(operands[0]))
    labels = _Labels.of(w, here, scores, operands)
    classes = _classes(here)
    largest = over(w, w.reduce("ReduceMax", scores, [1]), classes, here, "max")
    shifted = w.join("Sub", scores, largest)
    rows = w.reduce("ReduceSum", w.each("Exp", shifted), [1])
    parts = [w.reshape(rows, labels.local.dims), labels.picked(w, shifted)]
    if labels.weights is not None:
        parts.append(labels.held_weight(w, scores))
    parts = _packed(w, parts, classes, here) if classes else parts
    logarithm = w.each("Log", parts[0])
    weight = parts[2] if labels.weights is not None else labels.counted(w, scores)
    each = w.join("Mul", weight, w.join("Sub", logarithm, parts[1]))
    if labels.used is not None:
        each = w.where(labels.used, each, w.number(0, each))
    loss = _reduced(w, here, each, weight, _batch(here))
    if len(here.op.outputs) < 2 or not here.op.outputs[1]:
        return [loss]
    return [loss, w.join("Sub", shifted, w.expand(logarithm, 1))]


@lowers("NegativeLogLikelihoodLoss")
def _likelihood(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """What a rank picks is its term of a pending sum; a mean reduces its two sums at once."""
    w.need(13)
    log_p = w.widened(needed(operands[0]))
    labels = _Labels.of(w, here, log_p, operands)
    weight = labels.held_weight(w, log_p)
    each = w.each("Neg", w.join("Mul", weight, labels.picked(w, log_p)))
    return [_reduced(w, here, each, weight, [*_classes(here), *_batch(here)])]
