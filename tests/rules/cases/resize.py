"""Small operators of one family: resizing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.rules.cases.values import f, i
from tests.rules.prover import Case, case

__all__ = ["resizes"]


def _resize(x: np.ndarray, scales: tuple[float, ...] | None = None, sizes: tuple[int, ...] = (), **how: Any) -> Case:
    if scales is not None:
        return case("Resize", [x, None, np.array(scales, np.float32)], constants=[2], **how)
    return case("Resize", [x, None, None, i(*sizes)], constants=[3], **how)


def resizes() -> Iterator[Case]:
    yield _resize(f(4, 6, 3, 4), (1, 1, 2, 2), mode="nearest")
    yield _resize(f(4, 6, 3, 4), sizes=(4, 6, 6, 6), mode="linear")
    yield case("Upsample", [f(4, 6, 3, 4), np.array([1, 1, 2, 2], np.float32)], opset=9, constants=[1])
    yield case("Upsample", [f(1, 2, 6, 4), np.array([1, 1, 2, 3], np.float32)], opset=9, constants=[1], mode="linear")
    yield case("Upsample", [f(1, 2, 6, 4)], opset=7, scales=(1.0, 1.0, 2.0, 2.0))
    yield case("Resize", [f(1, 2, 6, 8), np.array([1, 1, 2, 0.5], np.float32)], opset=10, constants=[1])
    for rounding in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            how = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": where}
            yield _resize(f(1, 2, 8, 6), (1, 1, 2, 1.5), **how)
            yield _resize(f(1, 2, 12, 12), sizes=(1, 2, 4, 8), **how)
    nothing = np.zeros(0, np.float32)
    old: dict[str, Any] = {"opset": 11, "mode": "nearest", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    for rounding in ("floor", "round_prefer_floor"):
        old["nearest_mode"] = rounding
        for scales in ((1, 1, 2, 2), (1, 1, 0.5, 1.5)):
            yield case("Resize", [f(1, 2, 8, 6), nothing, np.array(scales, np.float32)], constants=[1, 2], **old)
    for mode in ("linear", "cubic"):
        for where in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"):
            yield _resize(f(1, 2, 12, 6), (1, 1, 2, 2), mode=mode, coordinate_transformation_mode=where)
            yield _resize(f(1, 2, 12, 16), sizes=(1, 2, 6, 12), mode=mode, coordinate_transformation_mode=where)
    yield _resize(f(1, 1, 12, 12), (1, 1, 0.66, 2.1), mode="linear")
    yield _resize(f(1, 2, 12, 12), (1, 1, 2, 2), mode="cubic", exclude_outside=1, cubic_coeff_a=-0.5)
    for mode in ("linear", "cubic"):
        for exclude in (0, 1):
            how = {"mode": mode, "antialias": 1, "exclude_outside": exclude}
            yield _resize(f(1, 2, 24, 24), sizes=(1, 2, 12, 12), **how)
            yield _resize(f(1, 2, 24, 24), sizes=(1, 2, 8, 36), **how)
    yield _resize(f(2, 6, 12, 8), sizes=(24, 16), axes=(2, 3), mode="linear")
    yield _resize(f(2, 6, 12, 8), (2.0, 0.5), axes=(-2, 3), mode="nearest")
    yield _resize(f(2, 2, 6, 4, 4), (1, 1, 2, 2, 2), mode="linear")
    yield _resize(f(2, 6, 12), (1, 1, 2), mode="linear")
    yield _resize(f(2, 6, 12), (1, 1, 2), mode="nearest")
    yield _resize((f(1, 2, 12, 8) * 20).astype(np.uint8), (1, 1, 2, 2), mode="nearest")
    yield _resize(f(1, 2, 12, 8), sizes=(1, 2, 24, 24), mode="linear", keep_aspect_ratio_policy="not_larger")
    yield _resize(f(1, 2, 12, 8).astype(np.float16), (1, 1, 2, 2), mode="linear")
