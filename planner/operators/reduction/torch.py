"""Sums and means over dimensions.

Where a dimension is split the local result is the rank's term of a pending sum, scaled by the strategy.
"""

from __future__ import annotations

from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("ReduceMean", "ReduceSum")
def _reduce(c: Call) -> Tensor | None:
    given = c.attr("axes") if c.maybe(1) is None else c.operand(1).tolist()
    if not given and c.attr("noop_with_empty_axes", 0):
        return None
    axes = tuple(given) if given else tuple(range(c.x.ndim))
    keep = bool(c.attr("keepdims", 1))
    return c.x.mean(axes, keepdim=keep) if c.op.type == "ReduceMean" else c.x.sum(axes, keepdim=keep)
