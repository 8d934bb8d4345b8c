"""Resizing: along every dimension a linear map (see `rule.py`), whose transpose is the gradient's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.gradients import Call, NoVjpError, register
from planner.operators.resize.rule import Resampling, resamplings, taps
from planner.rules.window import Range

__all__ = ["matrix", "resample", "resample_gradient", "resampled"]


def resampled(
    op: Op, inputs: Sequence[Array | None], source: Sequence[int], result: Sequence[int]
) -> dict[int, Resampling]:
    """The dimensions of a Resize or Upsample that are resampled."""
    operand = 1 if op.type == "Upsample" or op.opset < 11 else 2
    sized = len(inputs) > 3 and inputs[3] is not None and inputs[3].size > 0
    given = op.attributes.get("scales")
    if given is None and not sized and len(inputs) > operand and (value := inputs[operand]) is not None:
        given = value.reshape(-1)
    return resamplings(op.type, op.opset, op.attributes, source, result, None if sized else given, sized)


def matrix(r: Resampling, positions: Range, elements: Range) -> Array:
    """The part of the map that leads from these elements to these positions."""
    sources, weights = taps(r)
    source, weight = sources[slice(*positions)], weights[slice(*positions)]
    matrix = np.zeros((positions[1] - positions[0], elements[1] - elements[0]))
    rows = np.broadcast_to(np.arange(len(source))[:, None], source.shape)
    np.add.at(matrix, (rows, source - elements[0]), weight)
    return matrix


def resample(x: Array, dim: int, r: Resampling, positions: Range, elements: Range) -> Array:
    """The results at these positions from these elements, which `x` holds along `dim`."""
    if r.mode == "nearest":
        return x.take(taps(r)[0][slice(*positions), 0] - elements[0], axis=dim)
    map_ = matrix(r, positions, elements).astype(x.dtype)
    return np.moveaxis(np.tensordot(map_, x, (1, dim)), 0, dim)


def resample_gradient(dy: Array, dim: int, r: Resampling, positions: Range, elements: Range) -> Array:
    """The transpose of `resample`."""
    map_ = matrix(r, positions, elements).astype(dy.dtype)
    return np.moveaxis(np.tensordot(map_, dy, (0, dim)), 0, dim)


@register("Resize", "Upsample")
def _resize(c: Call) -> list[Array | None]:
    coordinates = string(c.attr("coordinate_transformation_mode"), "half_pixel")
    policy = string(c.attr("keep_aspect_ratio_policy"), "stretch")
    if coordinates == "tf_crop_and_resize" or policy != "stretch":
        raise NoVjpError(
            f"operator {c.op.name} ({c.op.type}): neither regions of interest nor kept aspect ratios have a "
            f"vector-Jacobian product, found {coordinates}, {policy}"
        )
    dx = c.dy
    for dim, r in resampled(c.op, c.inputs, c.x.shape, c.y.shape).items():
        dx = resample_gradient(dx, dim, r, (0, r.positions), (0, r.elements))
    return [dx]
