"""Lookups."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("Gather", aware=True)
def _gather(c: Call) -> Tensor | None:
    """Of a table split by rows a rank looks up those that it holds; the others are zeros of a pending sum."""
    axis, indices = c.axis(0), c.operand(1)
    if axis == 0 and c.x.ndim == 2:
        # Not `embedding`: the backward of a selection adds rows up where they belong, that of an embedding on a CPU
        # looks for them row by row of the table.
        if not c.place.splits("v"):
            return c.x.index_select(0, indices.reshape(-1) % c.x.shape[0]).reshape(*indices.shape, -1)
        local = indices - c.place.offset["v"]
        held = (local >= 0) & (local < c.x.shape[0])
        rows = c.x.index_select(0, torch.where(held, local, 0).reshape(-1))
        return (rows * held.reshape(-1, 1)).reshape(*indices.shape, -1)
    if c.place.splits("v"):
        return None
    if indices.ndim == 0:
        return c.x.select(axis, int(indices))
    found = c.x.index_select(axis, indices.reshape(-1) % c.x.shape[axis])
    return found.reshape(c.shape())
