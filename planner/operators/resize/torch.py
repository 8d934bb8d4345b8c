"""Resizing: along every dimension a linear map of a band of the source (see `rule.py`)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from planner.kernels.window import Reach, fetch
from planner.operators.resize.gradient import matrix, resampled
from planner.operators.resize.rule import Resampling, taps
from planner.operators.resize.split import space_of
from planner.runtime.arrays import driven
from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("Resize", "Upsample", aware=True)
def _resize(c: Call) -> Tensor | None:
    """Of regions of interest, and of scales that are computed at run time, others make the result."""
    coordinates = c.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_crop_and_resize" or c.attr("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    if not c.x.is_floating_point() or c.place.rule is None:
        return None
    operand = 1 if c.op.type == "Upsample" or c.op.opset < 11 else 2
    values: list[Any] = [None, *(c.value(i) for i in range(1, len(c.inputs)))]
    for i, (x, v) in enumerate(zip(c.inputs, values, strict=True)):
        if i and x is not None and v is None and x.numel():
            if i == operand:
                return None
            values[i] = np.zeros(x.shape)  # whatever they are: the result's shape is known
    if any(d in c.place.shards for d in c.place.rule.factors if d.startswith("y")):
        space = space_of(c.op, c.x, values, c.place)
    else:
        found = resampled(c.op, values, tuple(c.x.shape), c.shape())
        space = [Reach.at(c.place, r, dim, f"y{i}") for i, (dim, r) in enumerate(found.items())]
    y: Tensor = driven(_carried(c, space), c)
    return y.to(c.x.dtype)


def _carried(c: Call, space: list[Reach[Resampling]]) -> Generator[Any, Any, Tensor]:
    y = yield from fetch(c.x, space, "elements", c.place)
    for r in space:
        y = _resampled(y, r)
    return y


def _resampled(x: Tensor, r: Reach[Resampling]) -> Tensor:
    positions, elements = r.own("positions"), r.needed("elements")
    if r.window.mode == "nearest":
        places = taps(r.window)[0][slice(*positions), 0] - elements[0]
        return x.index_select(r.dim, torch.from_numpy(places.copy()).to(x.device))
    map_ = torch.from_numpy(matrix(r.window, positions, elements)).to(device=x.device, dtype=x.dtype)
    return torch.tensordot(map_, x, ([1], [r.dim])).movedim(0, r.dim)
