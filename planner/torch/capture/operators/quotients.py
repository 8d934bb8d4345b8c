"""Whole quotients, and what they leave."""

from __future__ import annotations

import torch

from planner.errors import InputError
from planner.torch.capture.operators.elementwise import Number, as_tensor, binary, choice, once, promoted
from planner.torch.capture.operators.functions import truncated
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


def _alike(w: Writer, a: Number, b: Number) -> tuple[Value, Value]:
    kind = promoted(a, b)
    return as_tensor(w, a, kind), as_tensor(w, b, kind)


def _left(w: Writer, a: Value, b: Value, *, fmod: int) -> Value:
    shape = torch.broadcast_shapes(a.shape, b.shape)
    return w.op("Mod", *once(w, a, b, shape), shape=shape, fmod=fmod)


def _passed(w: Writer, left: Value, a: Value, b: Number) -> Value:
    """What is left gets the dividend's gradient, which ONNX's Mod has not, by a term that is 0."""
    if isinstance(b, Value) and b.held is None:
        raise InputError(
            f"{w.path or 'the module'}: a remainder by a divisor that is computed has no gradient here; expected a "
            "number"
        )
    still = w.op("Detach", a, shape=a.shape, domain="planner")
    return binary(w, "Add", left, binary(w, "Sub", a, still))


@aten("fmod.Scalar", "fmod.Tensor")
def _fmod(w: Writer, a: Number, b: Number) -> Value:
    """With the sign of the dividend."""
    x, y = _alike(w, a, b)
    left = _left(w, x, y, fmod=1)
    return _passed(w, left, x, b) if x.dtype.is_floating_point else left


@aten("remainder.Scalar", "remainder.Tensor", "remainder.Scalar_Tensor")
def _remainder(w: Writer, a: Number, b: Number) -> Value:
    """With the sign of the divisor."""
    x, y = _alike(w, a, b)
    left = _of_divisor(w, x, y)
    return _passed(w, left, x, b) if x.dtype.is_floating_point else left


def _of_divisor(w: Writer, x: Value, y: Value) -> Value:
    """ONNX's Mod has the divisor's sign for whole numbers alone."""
    if not x.dtype.is_floating_point:
        return _left(w, x, y, fmod=0)
    left = _left(w, x, y, fmod=1)
    below = [binary(w, "Less", v, 0.0, dtype=torch.bool) for v in (left, y)]
    differ = w.op("Xor", *below, shape=left.shape, dtype=torch.bool)
    some = w.op("Not", (none := binary(w, "Equal", left, 0.0, dtype=torch.bool)), shape=none.shape)
    other = w.op("And", differ, some, shape=left.shape, dtype=torch.bool)
    return choice(w, other, binary(w, "Add", left, y), left)


@aten("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar")
def _whole_quotient(w: Writer, a: Number, b: Number, *, rounding_mode: str | None = "floor") -> Value:
    x, y = _alike(w, a, b)
    if rounding_mode is None:
        return binary(w, "Div", a, b)
    if rounding_mode == "trunc":
        return truncated(w, binary(w, "Div", x, y))  # ONNX divides whole numbers so
    exact = binary(w, "Div", binary(w, "Sub", x, _of_divisor(w, x, y)), y)
    return w.op("Round", exact, shape=exact.shape) if exact.dtype.is_floating_point else exact
