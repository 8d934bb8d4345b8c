"""Lookups."""

from __future__ import annotations

from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("Gather")
def _gather(c: Call) -> Tensor | None:
    axis, indices = c.axis(0), c.operand(1)
    if indices.ndim == 0:
        return c.x.select(axis, int(indices))
    # Not `embedding`: the backward of a selection adds rows up where they belong, that of an embedding on a CPU looks
    # for them row by row of the table.
    found = c.x.index_select(axis, indices.reshape(-1) % c.x.shape[axis])
    return found.reshape(c.shape())
