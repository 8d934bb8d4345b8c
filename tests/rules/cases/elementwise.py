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
        "planner::Detach",
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
    yield case("Cast", [f(4, 6).astype(np.float16)], to=1)
    yield case("CastLike", [f(4, 6), f(1).astype(np.float16)], opset=19)
    yield case("BitCast", [f(4, 6)], to=6, opset=26)
    yield case("PRelu", [f(2, 6, 4), f(1)])
    yield case("Shrink", [f(4, 6)], lambd=0.4, bias=0.1)
    yield case("ThresholdedRelu", [f(4, 6)], alpha=0.3)
    yield case("Celu", [f(4, 6)], alpha=0.7)
    yield case("Swish", [f(4, 6)], alpha=0.7, opset=24)
    yield case("Affine", [f(4, 6)], alpha=2.0, beta=0.5, opset=1)
    yield case("ParametricSoftplus", [f(4, 6)], alpha=2.0, beta=0.5, opset=1)
    yield case("ScaledTanh", [f(4, 6)], alpha=2.0, beta=0.5, opset=1)
    yield case("ImageScaler", [f(2, 3, 4, 6)], scale=2.0, bias=(0.1, 0.2, 0.3), opset=1)
    for t in ("Mod", "BitShift"):
        yield case(t, [n(9, 4, 6).astype(np.uint32), n(3, 6).astype(np.uint32) + 1], **_SHIFT.get(t, {}))
    for t in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        yield case(t, [n(9, 4, 6), n(9, 4, 1)])
    yield from _contributed()


_SHIFT = {"BitShift": {"direction": "LEFT"}}


def _contributed() -> Iterator[Case]:
    x = f(2, 4, 6)
    for t in ("Gelu", "QuickGelu", "FastGelu", "ScaledSiLU"):
        yield case(f"com.microsoft::{t}", [x], opset=1)
    yield case("com.microsoft::BiasGelu", [x, f(6)], opset=1)
    yield case("com.microsoft::FastGelu", [x, f(6)], opset=1)
    yield case("com.microsoft::ScaledSiLU", [x, np.float32(0.7)], opset=1)
    yield case("com.microsoft::GatedAdd", [x, f(2, 4, 6), f(2, 4, 1)], opset=1)
    yield case("com.microsoft::MurmurHash3", [n(99, 4, 6).astype(np.int32)], seed=3, opset=1)
    yield case("com.microsoft::LinearAttentionGate", [x, f(6), f(6), f(2, 4, 6)], results=2, opset=1)
    for t in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX"):
        yield case(f"com.microsoft::{t}", [x, f(2, 4, 6), f(6)], opset=1)
    for mode in (True, False):
        kept = f(2, 4, 6) > 0
        yield case("com.microsoft::DropoutGrad", [x, kept, np.float32(0.4), np.array(mode)], opset=1)
