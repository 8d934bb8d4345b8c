"""Losses."""

from __future__ import annotations

from typing import Any

from planner.torch.capture.operators.elementwise import binary
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
    if target.dtype.is_floating_point:  # shares of the classes
        log = w.op("LogSoftmax", x, shape=x.shape, axis=classes)
        rows = reduced(w, "ReduceSum", binary(w, "Mul", log, target), classes, False)
        rows = w.op("Neg", rows, shape=rows.shape)
        return _reduced(w, rows, reduction)
    x, target = (x, target) if x.rank > 1 else (_row(w, x), _row(w, target))
    exact = _labels(w, x, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return exact
    log = w.op("LogSoftmax", x, shape=x.shape, axis=x.dim(1))
    even = w.op("Neg", (m := reduced(w, "ReduceMean", log, 1, False)), shape=m.shape)
    return binary(
        w, "Add", binary(w, "Mul", exact, 1 - label_smoothing),
        binary(w, "Mul", _reduced(w, even, reduction), label_smoothing),
    )  # fmt: skip


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
