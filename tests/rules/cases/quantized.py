"""Small operators of one family: quantized."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case

__all__ = ["quantized"]


def quantized() -> Iterator[Case]:
    a, b = n(200, 2, 6, 4).astype(np.uint8), n(200, 4, 6).astype(np.uint8)
    yield case("MatMulInteger", [a, b])
    yield case("MatMulInteger", [a, b, np.uint8(7), np.uint8(9)])
    yield case("MatMulInteger", [a[0], b, None, n(9, 6).astype(np.uint8)])
    s, z = np.float32(0.1), np.uint8(3)
    yield case("QLinearMatMul", [a[0], s, z, b, s, z, np.float32(4.0), z])
    yield from _convolutions()
    yield case("DynamicQuantizeLinear", [f(4, 6)], results=3)


def _convolutions() -> Iterator[Case]:
    pads, s, z = (1, 1, 1, 1), np.float32(0.1), np.uint8(3)

    def u(*shape: int) -> np.ndarray:
        return n(9, *shape).astype(np.uint8)

    yield case("ConvInteger", [u(2, 4, 5, 5), u(6, 4, 3, 3), z], pads=pads)
    yield case("ConvInteger", [u(2, 4, 12, 8), u(6, 2, 3, 3), z], pads=pads, group=2, strides=(2, 1))
    yield case("ConvInteger", [u(2, 2, 12, 8), u(6, 2, 2, 3), z, np.uint8(2)], auto_pad="SAME_UPPER")
    scales, zeros = p(6) * np.float32(0.1), u(6)
    bias = n(50, 6).astype(np.int32)
    for w_scale, w_zero in ((s, z), (scales, zeros), (scales, z)):
        yield case("QLinearConv", [u(2, 4, 12, 8), s, z, u(6, 4, 3, 3), w_scale, w_zero, np.float32(2.0), z, bias],
                   pads=pads, strides=(2, 2))  # fmt: skip
    signed = (u(6, 1, 3, 3).astype(np.int8), s, np.int8(0))
    yield case("QLinearConv", [u(2, 6, 12, 8), s, z, *signed, np.float32(2.0), z], pads=pads, group=6)
