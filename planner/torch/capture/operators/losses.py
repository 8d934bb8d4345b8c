"""Losses."""

from __future__ import annotations

from typing import Any

import torch

from planner.torch.capture.operators.elementwise import binary, choice
from planner.torch.capture.operators.reductions import reduced
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

_REDUCTIONS = ("none", "mean", "sum")


def _reduced(w: Writer, x: Value, reduction: int) -> Value:
    return x if not reduction else reduced(w, "ReduceMean" if reduction == 1 else "ReduceSum", x, None, False)


@aten("cross_entropy_loss.default")
def _cross_entropy(
    w: Writer, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Value:  # fmt: skip
    classes = x.dim(1 if x.rank > 1 else 0)
    if target.dtype.is_floating_point:
        return _of_shares(w, x, target, weight, reduction, label_smoothing, classes)
    if x.rank == 1:
        x, target = _row(w, x), _row(w, target)
    exact = _labels(w, x, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return exact
    even = _evenly(w, x, target, weight, reduction, ignore_index)
    return binary(
        w, "Add", binary(w, "Mul", exact, 1 - label_smoothing),
        binary(w, "Mul", even, label_smoothing / x.shape[1]),
    )  # fmt: skip


def _of_shares(
    w: Writer, x: Value, target: Value, weight: Value | None, reduction: int, smoothing: float, classes: int
) -> Value:
    """Of targets that are shares of the classes.  A mean is that of the samples, whatever their classes weigh."""
    if smoothing:
        target = binary(w, "Add", binary(w, "Mul", target, 1 - smoothing), smoothing / x.shape[classes])
    log = w.op("LogSoftmax", x, shape=x.shape, axis=classes)
    terms = binary(w, "Mul", log, target)
    terms = terms if weight is None else binary(w, "Mul", terms, _by_class(w, weight, x.rank, classes))
    rows = reduced(w, "ReduceSum", terms, classes, False)
    return _reduced(w, w.op("Neg", rows, shape=rows.shape), reduction)


def _evenly(w: Writer, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int) -> Value:
    """What smoothed labels add: minus the logarithms of all classes, of the samples that have a label.  A mean is over
    what their labels weigh."""
    log = w.op("LogSoftmax", x, shape=x.shape, axis=1)
    log = log if weight is None else binary(w, "Mul", log, _by_class(w, weight, x.rank, 1))
    rows = reduced(w, "ReduceSum", log, 1, False)
    labelled = w.op("Not", binary(w, "Equal", target, ignored, dtype=torch.bool), shape=target.shape, dtype=torch.bool)
    rows = choice(w, labelled, w.op("Neg", rows, shape=rows.shape), 0.0)
    if reduction != 1:
        return _reduced(w, rows, reduction)
    weighs = w.cast(labelled, x.dtype)
    if weight is not None:
        known = choice(w, labelled, target, 0)
        of_label = w.op("Gather", weight, known, shape=target.shape, axis=0)
        weighs = binary(w, "Mul", of_label, weighs)
    return binary(w, "Div", _reduced(w, rows, 2), _reduced(w, weighs, 2))


def _by_class(w: Writer, weight: Value, rank: int, classes: int) -> Value:
    """A weight for each class, beside scores of a rank."""
    shape = [weight.shape[0] if d == classes else 1 for d in range(rank)]
    return w.op("Reshape", weight, w.integers(shape), shape=shape)


def _row(w: Writer, x: Value) -> Value:
    return w.op("Unsqueeze", x, w.integers([0]), shape=(1, *x.shape))


def _labels(w: Writer, x: Value, target: Value, weight: Value | None, reduction: int, ignored: int) -> Value:
    shape = target.shape if not reduction else ()
    operands = [x, target, weight]
    how: dict[str, Any] = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignored}
    return w.op("SoftmaxCrossEntropyLoss", *operands, shape=shape, dtype=x.dtype, **how)


@aten("nll_loss_nd.default", "nll_loss.default")
def _likelihood(
    w: Writer, x: Value, target: Value, weight: Value | None = None, reduction: int = 1, ignore_index: int = -100
) -> Value:
    shape = target.shape if not reduction else ()
    how: dict[str, Any] = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignore_index}
    return w.op("NegativeLogLikelihoodLoss", x, target, weight, shape=shape, dtype=x.dtype, **how)


@aten("mse_loss.default")
def _squared(w: Writer, x: Value, target: Value, reduction: int = 1) -> Value:
    apart = binary(w, "Sub", x, target)
    return _reduced(w, binary(w, "Mul", apart, apart), reduction)


@aten("l1_loss.default")
def _absolute(w: Writer, x: Value, target: Value, reduction: int = 1) -> Value:
    apart = binary(w, "Sub", x, target)
    return _reduced(w, w.op("Abs", apart, shape=apart.shape), reduction)


@aten("binary_cross_entropy_with_logits.default")
def _logits(
    w: Writer, x: Value, target: Value, weight: Value | None = None, pos_weight: Value | None = None, reduction: int = 1
) -> Value:
    """softplus(-x) weighs what should be one, softplus(x) what should be zero."""
    one = w.op("Softplus", w.op("Neg", x, shape=x.shape), shape=x.shape)
    one = one if pos_weight is None else binary(w, "Mul", one, pos_weight)
    zero = w.op("Softplus", x, shape=x.shape)
    rows = binary(w, "Add", binary(w, "Mul", target, one), binary(w, "Mul", binary(w, "Sub", 1.0, target), zero))
    return _reduced(w, rows if weight is None else binary(w, "Mul", rows, weight), reduction)
