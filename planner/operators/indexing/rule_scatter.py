"""Scatters: a rank that holds part of the data applies the updates that fall into it, without communication."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.operators.indexing.rule import paired
from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []

_EXTREMES = {"max": Combine.MAX, "min": Combine.MIN}


def _scatter(o: Operator, data: str, indices: str, updates: str, own: Sequence[str]) -> Rule:
    """Overwriting and adding are linear in data and updates together.

    Updates `i…` may be taken in parts by sums, where the data is added once, and by extremes, where every rank has
    it.  Factors `own` of the data are those of which a rank must know its part.
    """
    reduction = str(o.attribute("reduction", "none"))
    linear = reduction in ("none", "add")
    updated = ["i", *(f"i{k}" for k in range(o.rank(1)))]
    return sharded(
        o,
        f"{'+' if reduction == 'add' else ''}{data}, {indices}, {updates} -> {data}",
        kind="gather",
        whole=updated if reduction in ("none", "mul") else [],
        combine=dict.fromkeys(updated, _EXTREMES[reduction]) if reduction in _EXTREMES else None,
        linear=[(0, 2)] if linear else [(0,)] if reduction == "mul" else [],
        differentiable=(0, 2),
        saved=(1,) if linear else (0, 1, 2),
        saved_results=() if linear else (0,),
        flops=float(math.prod(o.shape(2))),
        aware=own,
    )


@rule("ScatterElements", "Scatter")
def _scatter_elements(o: Operator) -> Rule:
    data, indices = paired(o.shape(0), o.shape(1), o.axis(0))
    own = [f for f in data if not f.startswith("d")]
    return _scatter(o, " ".join(data), " ".join(indices), " ".join(indices), own)


@rule("ScatterND")
def _scatter_nd(o: Operator) -> Rule:
    """Factors `v…` are the dimensions that the coordinates refer to."""
    depth = o.shape(1)[-1]
    indices, rest = labels("i", o.rank(1) - 1), labels("r", o.rank(0) - depth)
    own = [f"v{k}" for k in range(depth)]
    return _scatter(o, f"{' '.join(own)} {rest}", f"{indices} *", f"{indices} {rest}", own)


@rule("TensorScatter")
def _tensor_scatter(o: Operator) -> Rule:
    """A cache, of which each batch element is overwritten from its own position on along factor `v`."""
    axis = o.axis(-2)
    cache = [f"d{i}" for i in range(o.rank(0))]
    update = [*cache[:axis], "*", *cache[axis + 1 :]]
    cache[axis] = "v"
    return sharded(
        o,
        f"{' '.join(cache)}, {' '.join(update)}, d0 -> {' '.join(cache)}",
        kind="gather",
        linear=[(0, 1)],
        differentiable=(0, 1),
        saved=(2,),
        flops=float(math.prod(o.shape(1))),
        aware=["v"],
    )
