"""Element by element."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from tests.rules.torch_gradients.subject import Subject, apart, f, indices, named, p, subject

__all__ = ["elementwise"]

_ANY = {
    "Abs": torch.abs,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Elu": functional.elu,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Gelu": functional.gelu,
    "HardSigmoid": lambda x: torch.clamp(0.2 * x + 0.5, 0, 1),
    "HardSwish": functional.hardswish,
    "Identity": torch.clone,
    "LeakyRelu": functional.leaky_relu,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Relu": functional.relu,
    "Round": torch.round,
    "Selu": functional.selu,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Tanh": torch.tanh,
    "com.microsoft::Gelu": functional.gelu,
    "com.microsoft::QuickGelu": lambda x: x * torch.sigmoid(1.702 * x),
}
_POSITIVE = {"Log": torch.log, "Reciprocal": torch.reciprocal, "Sqrt": torch.sqrt}
_INSIDE = {"Acos": torch.acos, "Asin": torch.asin, "Atanh": torch.atanh, "Tan": torch.tan}
_BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div}


def elementwise() -> Iterator[Subject]:
    for type_, meaning in _ANY.items():
        yield subject(type_, [f(4, 6)], meaning, opset=1 if "::" in type_ else 20)
    for type_, meaning in _POSITIVE.items():
        yield subject(type_, [p(4, 6)], meaning)
    for type_, meaning in _INSIDE.items():
        yield subject(type_, [p(4, 6, low=-0.8, high=0.8)], meaning)
    yield subject("Acosh", [p(4, 6, low=1.2, high=3)], torch.acosh)
    yield from _with_attributes()
    yield from _of_several()


def _with_attributes() -> Iterator[Subject]:
    yield subject("Celu", [f(4, 6)], named(functional.celu, alpha=0.75), alpha=0.75)
    yield subject("Elu", [f(4, 6)], named(functional.elu, alpha=0.5), alpha=0.5)
    yield subject("Gelu", [f(4, 6)], named(functional.gelu, approximate="tanh"), approximate="tanh")
    yield subject("HardSigmoid", [f(4, 6)], lambda x: torch.clamp(0.5 * x + 0.25, 0, 1), alpha=0.5, beta=0.25)
    yield subject("LeakyRelu", [f(4, 6)], lambda x: functional.leaky_relu(x, 0.25), alpha=0.25)
    yield subject("Swish", [f(4, 6)], lambda x: x * torch.sigmoid(1.25 * x), opset=24, alpha=1.25)
    yield subject("ThresholdedRelu", [f(4, 6)], lambda x: functional.threshold(x, 0.75, 0), alpha=0.75)
    yield subject("Clip", [f(4, 6), p(), 3 * p()], lambda x, low, high: x.clamp(low.item(), high.item()), fixed=(1, 2))
    yield subject("Shrink", [f(4, 6)], functional.hardshrink)
    yield subject("Shrink", [f(4, 6)], named(functional.softshrink, lambd=0.75), lambd=0.75, bias=0.75)
    yield subject("Clip", [f(4, 6)], lambda x: x.clamp(-0.5, 0.75), opset=9, min=-0.5, max=0.75)
    yield subject("Cast", [f(4, 6)], torch.clone, to=11)
    yield subject("CastLike", [f(4, 6), f(1)], lambda x, like: x.clone(), fixed=(1,))
    yield subject("Dropout", [f(4, 6)], torch.clone)
    yield subject("Dropout", [f(4, 6)], torch.clone, opset=7, ratio=0.5)


def _of_several() -> Iterator[Subject]:
    for type_, meaning in _BINARY.items():
        for a, b in (((4, 6), (4, 6)), ((2, 6, 4), (6, 1)), ((6,), (4, 1))):
            yield subject(type_, [f(*a), p(*b)], meaning)
    yield subject("Pow", [p(4, 6), f(6)], torch.pow)
    yield subject("Pow", [p(4, 6), p()], torch.pow)
    yield subject("PRelu", [f(2, 6, 4), f(6, 1)], lambda x, slope: functional.prelu(x, slope.flatten()))
    yield subject("Where", [indices(2, 4, 6) > 0, f(4, 1), f(6)], torch.where)
    yield subject("Sum", [f(4, 6), f(6), f(4, 1)], lambda a, b, c: a + b + c)
    yield subject("Mean", [f(4, 6), f(6)], lambda a, b: (a + b) / 2)
    for type_, pick in (("Max", torch.maximum), ("Min", torch.minimum)):
        values = apart(48)
        yield subject(type_, [values[:24].reshape(4, 6), values[24:30], values[30:34].reshape(4, 1)], _fold(pick))
    microsoft: dict[str, Any] = {"opset": 1}
    yield subject("com.microsoft::BiasGelu", [f(2, 4, 6), f(6)], lambda x, b: functional.gelu(x + b), **microsoft)
    approximate = named(functional.gelu, approximate="tanh")
    yield subject("com.microsoft::FastGelu", [f(2, 4, 6), f(6)], lambda x, b: approximate(x + b), **microsoft)
    yield subject("com.microsoft::FastGelu", [f(2, 4, 6)], approximate, **microsoft)


def _fold(pick: Any) -> Any:
    return lambda a, *others: a if not others else _fold(pick)(pick(a, others[0]), *others[1:])
