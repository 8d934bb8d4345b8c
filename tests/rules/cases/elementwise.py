"""Small operators of one family: elementwise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case

__all__ = ["elementwise"]


def elementwise() -> Iterator[Case]:
    for t in (
        "Relu",
        "Gelu",
        "Tanh",
        "Sigmoid",
        "Erf",
        "Exp",
        "Neg",
        "Identity",
        "Sin",
        "Cos",
        "Softplus",
        "HardSwish",
        "HardSigmoid",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Abs",
        "Sign",
        "Floor",
        "Softsign",
        "Mish",
    ):
        yield case(t, [f(4, 6)])
    for t in ("Sqrt", "Log", "Reciprocal"):
        yield case(t, [p(4, 6)])
    for t in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Equal", "Greater", "LessOrEqual"):
        for shapes in (((6, 4), (6, 4)), ((6, 1, 4), (2, 1)), ((6, 4), (4,)), ((6, 4), ()), ((1, 4), (6, 1))):
            yield case(t, [p(*shapes[0]), p(*shapes[1])])
    yield case("Add", [n(5, 4, 6), n(5, 6)])
    yield case("Sum", [f(4, 6), f(6), f(4, 1)])
    yield case("Pow", [p(4, 6), np.float32(2.0)])
    yield case("Where", [f(4, 6) > 0, f(4, 1), f(6)])
    yield case("And", [f(4, 6) > 0, f(6) > 0])
    yield case("Not", [f(4, 6) > 0])
    yield case("IsNaN", [f(4, 6)])
    yield case("Clip", [f(4, 6), np.float32(-0.5), np.float32(0.5)])
    yield case("Clip", [f(4, 6)], opset=9, min=-0.5, max=0.5)
    yield case("PRelu", [f(2, 6, 4), f(6, 1)])
    yield case("Cast", [f(4, 6)], to=10)
    yield case("Cast", [f(4, 6)], to=7)
    yield case("Cast", [n(9, 4, 6)], to=1)
    yield case("Dropout", [f(4, 6)])
    yield case("Dropout", [f(4, 6)], opset=7, ratio=0.5)
    yield case("QuantizeLinear", [f(4, 6), np.float32(0.1), np.uint8(3)])
    yield case("QuantizeLinear", [f(4, 6), p(6), np.zeros(6, np.int8)])
    yield case("DequantizeLinear", [n(9, 4, 6).astype(np.int8), p(4), np.zeros(4, np.int8)], axis=0)
