"""Operators whose result is made from a shape or a range."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from planner.operators.elementwise.torch import element_type
from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("ConstantOfShape")
def _constant_of_shape(c: Call) -> Tensor:
    value = np.asarray(c.attr("value", np.zeros(1, dtype=np.float32))).reshape(())
    return torch.full(
        c.shape(), value.item(), dtype=torch.from_numpy(value.reshape(1).copy()).dtype, device=c.inside.context.device
    )


@operator("Range")
def _range(c: Call) -> Tensor | None:
    """Of a number of elements that is known, or of bounds that are fetched."""
    start, limit, step = (c.operand(i) for i in range(3))
    if c.shapes and c.shapes[0] is not None:
        count = c.shapes[0][0]
    else:
        ends = [n.item() if isinstance(n, Tensor) else n for n in (c.number(i) for i in range(3))]
        count = max(0, math.ceil((ends[1] - ends[0]) / ends[2]))
    return torch.arange(count, device=limit.device).to(start.dtype) * step.reshape(()) + start.reshape(())


@operator("EyeLike")
def _eye_like(c: Call) -> Tensor | None:
    to = c.x.dtype if c.attr("dtype") is None else element_type(int(c.attr("dtype")))
    if to is None:
        return None
    rows, columns = (torch.arange(n, device=c.x.device) for n in c.x.shape)
    return (columns[None] - rows[:, None] == int(c.attr("k", 0))).to(to)
