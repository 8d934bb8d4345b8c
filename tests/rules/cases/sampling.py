"""Small operators of one family: features read at computed places, folds and causal convolutions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n, p
from tests.rules.prover import Case, case

__all__ = ["sampling"]


def sampling() -> Iterator[Case]:
    yield case("Col2Im", [f(2, 24, 12), i(4, 5), i(2, 2)], constants=[1, 2])
    yield case("Col2Im", [f(2, 12, 12), i(6, 8), i(1, 2)], constants=[1, 2], strides=(2, 2), pads=(0, 0, 0, 0))
    yield case("Col2Im", [f(2, 24, 12), i(4, 5), i(2, 2)], constants=[1, 2], dilations=(2, 1), pads=(0, 0, 1, 0))
    for activation in ({}, {"activation": "silu"}):
        past = [f(2, 6, 8), f(6, 1, 4), f(6), f(2, 6, 3)]
        yield case("CausalConvWithState", past, results=2, opset=27, **activation)
        yield case("CausalConvWithState", past[:2], results=2, opset=27, **activation)
    for align in (0, 1):
        yield case("AffineGrid", [f(6, 2, 3), i(6, 2, 4, 8)], constants=[1], align_corners=align)
        yield case("AffineGrid", [f(2, 3, 4), i(2, 1, 4, 6, 2)], constants=[1], align_corners=align)
        for padding in ("zeros", "border", "reflection"):
            for mode in ("linear", "nearest", "cubic"):
                yield case("GridSample", [f(2, 4, 6, 5), f(2, 4, 6, 2)], align_corners=align, mode=mode,
                           padding_mode=padding)  # fmt: skip
    yield case("GridSample", [f(2, 4, 3, 4, 5), f(2, 2, 4, 6, 3)])
    corners = np.sort(p(6, 2, 2) * 4, axis=1).reshape(6, 4)
    for how in ({}, {"mode": "max"}, {"sampling_ratio": 2, "coordinate_transformation_mode": "output_half_pixel"}):
        yield case("RoiAlign", [f(4, 6, 12, 12), corners, n(4, 6)], output_height=2, output_width=3, **how)
    regions = np.concatenate([n(4, 6)[:, None].astype(np.float32), corners], axis=1)
    yield case("MaxRoiPool", [f(4, 6, 12, 12), regions], pooled_shape=(2, 2))
    yield from _deformed()
    yield from _deformed_volumes()


def _deformed() -> Iterator[Case]:
    x, pads = f(2, 4, 5, 4), (1, 1, 1, 1)
    yield case("DeformConv", [x, f(6, 4, 3, 3), f(2, 18, 5, 4), f(6), f(2, 9, 5, 4)], opset=22, pads=pads)
    yield case("DeformConv", [x, f(6, 2, 2, 2), f(2, 16, 4, 3)], opset=22, group=2, offset_group=2)
    yield case("DeformConv", [x, f(6, 4, 2, 2), f(2, 16, 4, 3), f(6), f(2, 8, 4, 3)], opset=22, offset_group=2)
    yield case("DeformConv", [x, f(4, 2, 2, 2), f(2, 8, 2, 2)], opset=22, group=2, strides=(2, 2))
    yield case("DeformConv", [x, f(4, 2, 2, 2), f(2, 32, 4, 3)], opset=22, group=2, offset_group=4)


def _deformed_volumes() -> Iterator[Case]:
    t, x = "planner::DeformConv3D", f(2, 4, 4, 2, 6)
    yield case(t, [x, f(6, 4, 2, 3, 3), f(2, 54, 2, 2, 6)], opset=1, strides=(2, 1, 1), pads=(0, 1, 1, 0, 1, 1))
    yield case(t, [x, f(6, 4, 2, 1, 2), f(2, 12, 3, 2, 3), f(6), f(2, 4, 3, 2, 3)], opset=1, strides=(1, 1, 2))
    several = {"group": 2, "dilations": (1, 1, 2)}
    yield case(t, [x, f(4, 2, 1, 2, 2), f(2, 24, 4, 1, 4), f(4), f(2, 8, 4, 1, 4)], opset=1, offset_group=2, **several)
    yield case(t, [x, f(6, 4, 1, 2, 1), f(2, 12, 4, 1, 6), f(6), f(2, 4, 4, 1, 6)], opset=1, offset_group=2)
    yield case(t, [x, f(4, 2, 1, 2, 1), f(2, 24, 4, 1, 6)], opset=1, group=2, offset_group=4)
    yield case("DeformConv", [x, f(6, 4, 1, 2, 1), f(2, 6, 4, 1, 6), f(6)], opset=22)
