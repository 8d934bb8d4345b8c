"""Reductions over dimensions: a split of a reduced dimension leaves a pending reduction, where there is one."""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []

# None: a function is applied to the reduced value, or no collective reduces so: the dimension stays whole.
_COMBINE: dict[str, Combine | None] = {
    "ReduceL1": Combine.SUM,
    "ReduceL2": None,
    "ReduceLogSum": None,
    "ReduceLogSumExp": None,
    "ReduceMax": Combine.MAX,
    "ReduceMean": Combine.MEAN,
    "ReduceMin": Combine.MIN,
    "ReduceProd": None,
    "ReduceSum": Combine.SUM,
    "ReduceSumSquare": Combine.SUM,
}
_LINEAR = {"ReduceSum", "ReduceMean"}


def _reduce(o: Operator) -> Rule:
    """Axes are an attribute or operand 1; none given means all, or nothing (`noop_with_empty_axes`)."""
    rank = o.rank(0)
    axes = o.ints(1, "axes")
    if axes:
        reduced = {a % rank for a in axes}
    else:
        reduced = set() if o.attribute("noop_with_empty_axes", 0) else set(range(rank))
    combine = _COMBINE[o.type]
    if combine is Combine.MEAN and not o.is_float(0):
        combine = None  # every rank would round
    names = [f"d{i}{'!' if combine is None and i in reduced else ''}" for i in range(rank)]
    keep = o.attribute("keepdims", 1)
    kept = [("1" if i in reduced else f) for i, f in enumerate(names) if keep or i not in reduced]
    linear = o.type in _LINEAR
    return sharded(
        o,
        f"{' '.join(names)}, - -> {' '.join(kept)}",
        kind="reduction",
        combine={f"d{i}": combine for i in reduced} if combine is not None else {},
        linear=[(0,)] if linear else [],
        differentiable=(0,),
        saved=() if linear else (0,),
        saved_results=() if linear else (0,),
        flops=float(math.prod(o.shape(0))),
        backward_flops=float(math.prod(o.shape(0))),
    )


for _type in _COMBINE:
    rule(_type)(_reduce)


@rule("ArgMax", "ArgMin")
def _arg(o: Operator) -> Rule:
    axis = o.axis(0)
    names = [f"d{i}{'!' if i == axis else ''}" for i in range(o.rank(0))]
    keep = o.attribute("keepdims", 1)
    kept = [("1" if i == axis else f) for i, f in enumerate(names) if keep or i != axis]
    return sharded(o, f"{' '.join(names)} -> {' '.join(kept)}", kind="reduction", flops=float(math.prod(o.shape(0))))


@rule("CumSum", "CumProd")
def _cumulate(o: Operator) -> Rule:
    axis = o.ints(1, "axis") or (0,)
    rank = o.rank(0)
    names = " ".join(f"d{i}{'!' if i == axis[0] % rank else ''}" for i in range(rank))
    linear = o.type == "CumSum"
    return sharded(
        o,
        f"{names}, - -> {names}",
        kind="reduction",
        linear=[(0,)] if linear else [],
        differentiable=(0,),
        saved=() if linear else (0,),
        saved_results=() if linear else (0,),
    )
