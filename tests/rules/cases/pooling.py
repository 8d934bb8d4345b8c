"""Small operators of one family: pooling."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n
from tests.rules.prover import Case, case

__all__ = ["pools"]


def pools() -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    yield case("MaxPool", [f(4, 6, 12, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), strides=(2, 2), pads=pads)
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), results=2)
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), pads=pads, count_include_pad=1)
    yield case("LpPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2))
    for t in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield case(t, [f(4, 6, 6, 4)])
    yield case("GlobalMaxPool", [np.maximum(f(2, 2, 6, 4), 0.5)])  # ties
    yield case("GlobalLpPool", [f(2, 4, 12)], p=3)
    yield case("LRN", [f(4, 6, 6, 4)], size=3, alpha=2.0)
    for asymmetric in ({"pads": (0, 1, 1, 0)}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"}):
        for t in ("MaxPool", "AveragePool", "LpPool"):
            yield case(t, [f(1, 2, 12, 12)], kernel_shape=(3, 2), strides=(2, 1), **asymmetric)
    for counted in (0, 1):
        yield case("AveragePool", [f(1, 2, 12, 12)], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1, pads=pads,
                   count_include_pad=counted)  # fmt: skip
        yield case("AveragePool", [f(1, 2, 12, 12)], kernel_shape=(3, 3), pads=pads, dilations=(1, 1),
                   count_include_pad=counted)  # fmt: skip
        yield case("AveragePool", [f(1, 2, 13, 12)], kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1,
                   count_include_pad=counted)  # fmt: skip
    yield case("MaxPool", [np.maximum(f(2, 2, 12, 12), 0)], kernel_shape=(3, 3), pads=pads)  # ties
    yield case("MaxPool", [f(1, 2, 12, 12)], kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    yield case("MaxPool", [f(1, 2, 12, 12)], kernel_shape=(2, 3), dilations=(2, 1), pads=pads)
    yield case("MaxPool", [f(1, 2, 6, 6, 4)], kernel_shape=(3, 3, 3), pads=(1,) * 6)
    yield case("MaxPool", [f(2, 2, 24)], kernel_shape=(3,), strides=(2,), pads=(1, 1))
    yield case("MaxPool", [f(2, 2, 12, 8)], kernel_shape=(3, 3), strides=(2, 2), pads=pads, results=2)
    yield case("MaxPool", [f(2, 2, 12, 8)], kernel_shape=(3, 3), pads=pads, results=2, storage_order=1)
    yield case("MaxPool", [f(2, 2, 12)], kernel_shape=(2,), strides=(2,), results=2)
    yield case("MaxPool", [f(1, 2, 6, 4, 4)], kernel_shape=(2, 2, 2), strides=(2, 2, 2), results=2)
    yield case("LpPool", [f(1, 2, 12, 12)], kernel_shape=(3, 3), pads=pads, p=3)
    yield case("LpPool", [f(1, 2, 12)], kernel_shape=(3,), strides=(2,), pads=(1, 0), p=1)
    yield case("MaxPool", [f(2, 2, 12, 4).astype("float16")], kernel_shape=(3, 3), pads=pads)
    pooled = case("MaxPool", [f(2, 6, 4, 8)], kernel_shape=(2, 2), strides=(2, 2), results=2)
    yield case("MaxUnpool", list(pooled.results), kernel_shape=(2, 2), strides=(2, 2))
    overlapping = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": pads}  # one element may be the largest of several
    pooled = case("MaxPool", [f(2, 6, 7, 7)], results=2, **overlapping)
    yield case("MaxUnpool", [*pooled.results, i(2, 6, 7, 7)], constants=[2], **overlapping)
    yield from _quantized()


def _quantized() -> Iterator[Case]:
    ms, s, z = "com.microsoft::", np.float32(0.1), np.uint8(3)
    window = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    first = (n(99, 4, 6, 12, 8).astype(np.uint8), s, z, s, z)
    last = (n(99, 4, 12, 8, 6).astype(np.uint8), s, z, s, z)
    for counted in (0, 1):
        yield case(f"{ms}QLinearAveragePool", first, opset=1, **window, count_include_pad=counted)
    yield case(f"{ms}QLinearAveragePool", last, opset=1, **window, channels_last=1)
    yield case(f"{ms}QLinearAveragePool", first, opset=1, kernel_shape=(2, 2), strides=(2, 2))
    yield case(f"{ms}QLinearGlobalAveragePool", first, opset=1)
    yield case(f"{ms}QLinearGlobalAveragePool", last, opset=1, channels_last=1)
    yield case(f"{ms}NhwcMaxPool", last[:1], opset=1, **window)
    yield case(f"{ms}NhwcMaxPool", last[:1], opset=1, kernel_shape=(2, 2), strides=(2, 2))
