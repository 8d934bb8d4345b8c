"""Resizing in double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis, string
from planner.kernels.local import in_double
from planner.operators.resize.gradient import resample, resampled

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]


def _resize(op: Op, inputs: Operands) -> Results | None:
    """Neither regions of interest nor kept aspect ratios."""
    x = inputs[0]
    crop = string(op.attributes.get("coordinate_transformation_mode")) == "tf_crop_and_resize"
    if x is None or crop or string(op.attributes.get("keep_aspect_ratio_policy"), "stretch") != "stretch":
        return None
    axes = [normalise_axis(int(a), x.ndim) for a in op.attributes.get("axes") or range(x.ndim)]
    shape = list(x.shape)
    sizes = inputs[3] if len(inputs) > 3 else None
    if sizes is not None and sizes.size:
        for axis, size in zip(axes, sizes, strict=True):
            shape[axis] = int(size)
    else:
        operand = 1 if op.type == "Upsample" or op.opset < 11 else 2
        scales = op.attributes.get("scales") if len(inputs) <= operand else inputs[operand]
        if scales is None:
            return None
        for axis, scale in zip(axes, scales, strict=True):
            # The scales of the file are float32: 0.6 of 10 elements are 6.
            shape[axis] = math.floor(np.float32(shape[axis]) * np.float32(scale))
    y = x
    for dim, r in resampled(op, inputs, x.shape, shape).items():
        y = resample(y, dim, r, (0, r.positions), (0, r.elements))
    return [y]


in_double(
    {
        "Resize": _resize,
        "Upsample": _resize,
    }
)
