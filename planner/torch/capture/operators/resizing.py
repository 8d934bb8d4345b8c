"""Interpolation over space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from planner.errors import InputError
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []

_EXACT = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
_NEAREST = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}


def _resized(w: Writer, x: Value, scales: Sequence[float | None] | None, **how: Any) -> Value:
    """By the factors where they are given, which say where samples lie; else from one size to the other."""
    shape = w.result_shape()
    if scales is not None and all(s is not None for s in scales):
        factors = w.constant(torch.tensor([1.0, 1.0, *(float(s) for s in scales if s is not None)]))
        return w.op("Resize", x, None, factors, shape=shape, **how)
    return w.op("Resize", x, None, None, w.integers(shape), shape=shape, **how)


@aten("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec", "_upsample_nearest_exact1d.vec",
      "_upsample_nearest_exact2d.vec", "_upsample_nearest_exact3d.vec")  # fmt: skip
def _nearest(w: Writer, x: Value, size: object, scales: Sequence[float] | None = None) -> Value:
    return _resized(w, x, scales, mode="nearest", **(_EXACT if "exact" in w.operator else _NEAREST))


@aten("upsample_nearest1d.default", "upsample_nearest2d.default", "upsample_nearest3d.default",
      "_upsample_nearest_exact1d.default", "_upsample_nearest_exact2d.default",
      "_upsample_nearest_exact3d.default")  # fmt: skip
def _nearest_by(w: Writer, x: Value, size: object, *scales: float | None) -> Value:
    return _nearest(w, x, size, _each(x, scales))


@aten("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_bicubic2d.vec",
      "_upsample_bilinear2d_aa.vec", "_upsample_bicubic2d_aa.vec")  # fmt: skip
def _smooth(w: Writer, x: Value, size: object, corners: bool, scales: Sequence[float | None] | None = None) -> Value:
    cubic, wide = "bicubic" in w.operator, "_aa" in w.operator
    how: dict[str, Any] = {"coordinate_transformation_mode": "align_corners" if corners else "half_pixel"}
    if corners and wide:
        raise InputError(
            f"{w.path or 'the module'}: an interpolation with antialias and align_corners has no translation; leave "
            "align_corners out"
        )
    if corners:
        scales = None  # the corners say where samples lie
    if cubic:
        how["cubic_coeff_a"] = -0.5 if wide else -0.75
    if wide:  # torch leaves out what lies beyond the edge, where ONNX repeats the edge
        how |= {"antialias": 1, "exclude_outside": 1}
    return _resized(w, x, scales, mode="cubic" if cubic else "linear", **how)


@aten("upsample_linear1d.default", "upsample_bilinear2d.default", "upsample_trilinear3d.default",
      "upsample_bicubic2d.default", "_upsample_bilinear2d_aa.default", "_upsample_bicubic2d_aa.default")  # fmt: skip
def _smooth_by(w: Writer, x: Value, size: object, corners: bool, *scales: float | None) -> Value:
    return _smooth(w, x, size, corners, _each(x, scales))


def _each(x: Value, scales: Sequence[float | None]) -> Sequence[float | None] | None:
    """One for each dimension of space, or none."""
    return scales if len(scales) == x.rank - 2 else None


@aten("grid_sampler_2d.default", "grid_sampler_3d.default")
def _grid(w: Writer, x: Value, grid: Value, mode: int, padding: int, corners: bool) -> Value:
    return w.op(
        "GridSample", x, grid, shape=w.result_shape(), mode=("linear", "nearest", "cubic")[mode],
        padding_mode=("zeros", "border", "reflection")[padding], align_corners=int(corners),
    )  # fmt: skip
