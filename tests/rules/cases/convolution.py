"""Small operators of one family: convolution."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f
from tests.rules.prover import Case, case

__all__ = ["convolutions"]


def convolutions() -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    yield case("Conv", [f(6, 4, 5, 5), f(12, 4, 3, 3), f(12)], pads=pads, strides=(2, 2))
    yield case("Conv", [f(6, 4, 6, 4), f(12, 4, 1, 1), f(12)])
    yield case("Conv", [f(2, 3, 12, 8), f(12, 3, 2, 2), f(12)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 4, 6, 4), f(4, 6, 2, 2), f(6)], strides=(2, 2))
    yield case("MaxPool", [f(4, 6, 12, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("Conv", [f(2, 4, 9), f(6, 4, 3), f(6)], dilations=(2,))
    yield case("Conv", [f(2, 12, 5, 5), f(12, 1, 3, 3), f(12)], group=12, pads=pads)
    yield case("Conv", [f(2, 12, 5, 5), f(24, 2, 3, 3), f(24)], group=6, pads=pads)
    yield case("Conv", [f(2, 8, 5, 5), f(8, 4, 3, 3)], group=2, auto_pad="SAME_UPPER")
    yield case("ConvTranspose", [f(2, 4, 5, 5), f(4, 6, 3, 3), f(6)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 12, 5, 5), f(12, 2, 3, 3), f(12)], group=6)
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), strides=(2, 2), pads=pads)
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), results=2)
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), pads=pads, count_include_pad=1)
    yield case("LpPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2))
    for t in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield case(t, [f(4, 6, 6, 4)])
    yield case("LRN", [f(4, 6, 6, 4)], size=3, alpha=2.0)
