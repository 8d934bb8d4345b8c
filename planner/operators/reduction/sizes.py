"""How reductions carry a new size."""

from __future__ import annotations

import numpy as np

from planner.frontends.facts.sizes import carries, shaped_like_first
from planner.frontends.resized.carry import Carrier, Factors
from planner.ir import Op

__all__: list[str] = []


@carries(
    "ArgMax",
    "ArgMin",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
)
def _reduce(c: Carrier, op: Op) -> None:
    """Dimensions that are not reduced pass through; one that is may have any size."""
    t, o = op.inputs[0], op.outputs[0]
    rank, keepdims = len(c.before(t)), bool(op.attributes.get("keepdims", 1))
    stated = op.attributes.get("axes", op.attributes.get("axis", 0 if op.type.startswith("Arg") else None))
    if len(op.inputs) > 1 and op.inputs[1]:
        stated = c.value(op.inputs[1])
        if stated is None:
            return
    axes = [int(a) % rank for a in np.ravel(stated)] if stated is not None else []
    if not axes and not op.attributes.get("noop_with_empty_axes", 0):
        axes = list(range(rank))
    factors: list[Factors] = []
    for axis in range(rank):
        if axis not in axes:
            c.pass_up(op, o, len(factors), t, axis)
            factors.append(c.parts(t)[axis])
        elif keepdims:
            factors.append(((1, 1),))
    if len(factors) == len(c.before(o)):
        c.factors[o] = tuple(factors)


shaped_like_first("CumSum")
