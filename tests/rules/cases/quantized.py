"""Small operators of one family: quantized."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, n
from tests.rules.prover import Case, case

__all__ = ["quantized"]


def quantized() -> Iterator[Case]:
    a, b = n(200, 2, 6, 4).astype(np.uint8), n(200, 4, 6).astype(np.uint8)
    yield case("MatMulInteger", [a, b])
    yield case("MatMulInteger", [a, b, np.uint8(7), np.uint8(9)])
    yield case("MatMulInteger", [a[0], b, None, n(9, 6).astype(np.uint8)])
    yield case(
        "ConvInteger",
        [n(9, 2, 4, 5, 5).astype(np.uint8), n(9, 6, 4, 3, 3).astype(np.uint8), np.uint8(3)],
        pads=(1, 1, 1, 1),
    )
    s, z = np.float32(0.1), np.uint8(3)
    yield case("QLinearMatMul", [a[0], s, z, b, s, z, np.float32(4.0), z])
    yield case("DynamicQuantizeLinear", [f(4, 6)], results=3)
