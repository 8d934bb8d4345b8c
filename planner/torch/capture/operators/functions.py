"""Functions of one element that ONNX has no single word for."""

from __future__ import annotations

import math

import torch

from planner.errors import InputError
from planner.torch.capture.operators.elementwise import binary, choice, promoted
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


def _unary(w: Writer, type_: str, x: Value, dtype: torch.dtype | None = None) -> Value:
    return w.op(type_, x, shape=x.shape, dtype=dtype)


def _real(w: Writer, x: Value) -> Value:
    return w.cast(x, promoted(x, 1.0))


@aten("expm1.default")
def _expm1(w: Writer, x: Value) -> Value:
    """2 exp(x / 2) sinh(x / 2), which keeps the digits that exp(x) - 1 loses near 0."""
    half = binary(w, "Mul", _real(w, x), 0.5)
    return binary(w, "Mul", binary(w, "Mul", _unary(w, "Exp", half), 2.0), _unary(w, "Sinh", half))


@aten("log1p.default")
def _log1p(w: Writer, x: Value) -> Value:
    """log(u) + (x - (u - 1)) / u of the rounded sum u = 1 + x: what the sum lost comes on top."""
    x = _real(w, x)
    total = binary(w, "Add", x, 1.0)
    lost = binary(w, "Sub", x, binary(w, "Sub", total, 1.0))
    return binary(w, "Add", _unary(w, "Log", total), binary(w, "Div", lost, total))


@aten("log2.default", "log10.default")
def _other_logarithm(w: Writer, x: Value) -> Value:
    base = 2 if "log2" in w.operator else 10
    return binary(w, "Mul", _unary(w, "Log", _real(w, x)), 1 / math.log(base))


@aten("exp2.default")
def _exp2(w: Writer, x: Value) -> Value:
    return _unary(w, "Exp", binary(w, "Mul", _real(w, x), math.log(2)))


@aten("softplus.default")
def _softplus(w: Writer, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    """Beyond a threshold of 20 or more the function is the line in single precision, too."""
    steep = x if beta == 1 else binary(w, "Mul", x, beta)
    y = _unary(w, "Softplus", steep)
    y = y if beta == 1 else binary(w, "Mul", y, 1 / beta)
    return y if threshold >= 20 else choice(w, binary(w, "Greater", steep, threshold, dtype=torch.bool), x, y)


@aten("log_sigmoid.default")
def _log_sigmoid(w: Writer, x: Value) -> Value:
    return _unary(w, "Neg", _unary(w, "Softplus", _unary(w, "Neg", x)))


@aten("celu.default")
def _celu(w: Writer, x: Value, alpha: float = 1.0) -> Value:
    return w.op("Celu", x, shape=x.shape, alpha=alpha)


@aten("trunc.default", "fix.default")
def truncated(w: Writer, x: Value) -> Value:
    """Without what stands behind the point."""
    if not x.dtype.is_floating_point:
        return x
    return binary(w, "Mul", _unary(w, "Sign", x), _unary(w, "Floor", _unary(w, "Abs", x)))


@aten("isnan.default")
def _is_nan(w: Writer, x: Value) -> Value:
    return _unary(w, "IsNaN", x, torch.bool)


@aten("isinf.default")
def _is_infinite(w: Writer, x: Value) -> Value:
    return _unary(w, "IsInf", x, torch.bool)


@aten("atan2.default")
def _atan2(w: Writer, y: Value, x: Value) -> Value:
    """The angle of y / x, turned by half a turn where x is negative."""
    angle = _unary(w, "Atan", binary(w, "Div", y, x))
    below = binary(w, "Less", y, 0.0, dtype=torch.bool)
    turn = choice(w, below, w.scalar(-math.pi, angle.dtype), w.scalar(math.pi, angle.dtype))
    left = binary(w, "Less", x, 0.0, dtype=torch.bool)
    return binary(w, "Add", angle, choice(w, left, turn, 0.0))


@aten("round.decimals")
def _round(w: Writer, x: Value, *, decimals: int) -> Value:
    if decimals:
        raise InputError(f"{w.path or 'the module'}: rounding to {decimals} decimals has no translation; scale, round")
    return _unary(w, "Round", x)
