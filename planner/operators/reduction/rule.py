"""Reductions over dimensions.

A split of a reduced dimension leaves a pending reduction where a collective reduces so.  Where a function is applied
to the reduced value (a root, a logarithm), where places count (ArgMax, CumSum) and where no collective multiplies,
ranks combine their parts inside: what travels is the size of the result, far less than the operand.
"""

from __future__ import annotations

import math

from planner.ir.tensor import ITEM_BYTES
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__: list[str] = []

_COMBINE: dict[str, Combine] = {
    "ReduceL1": Combine.SUM,
    "ReduceL2": Combine.INNER,
    "ReduceLogSum": Combine.INNER,
    "ReduceLogSumExp": Combine.INNER,
    "ReduceMax": Combine.MAX,
    "ReduceMean": Combine.MEAN,
    "ReduceMin": Combine.MIN,
    "ReduceProd": Combine.INNER,
    "ReduceSum": Combine.SUM,
    "ReduceSumSquare": Combine.SUM,
    "com.microsoft::ReduceSumInteger": Combine.SUM,
}
_LINEAR = {"ReduceSum", "ReduceMean"}
_OF_RESULT = {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMin"}


def _reduce(o: Operator) -> Rule:
    """Axes are an attribute or operand 1; none given means all, or nothing (`noop_with_empty_axes`).

    A pending maximum has no gradient, because no rank knows who held it: mode `^d…` reduces it inside instead.
    """
    rank = o.rank(0)
    axes = o.ints(1, "axes")
    if axes:
        reduced = {a % rank for a in axes}
    else:
        reduced = set() if o.attribute("noop_with_empty_axes", 0) else set(range(rank))
    combine = _COMBINE[o.type]
    if combine is Combine.MEAN and not o.is_float(0):
        combine = Combine.INNER  # the sum is exact, and divided once
    functions = {"ReduceL2", "ReduceLogSum", "ReduceLogSumExp"}
    fixed = combine is Combine.INNER and o.type in functions and not o.is_float(0)  # every runtime rounds its own way
    names = [f"d{i}{'!' if fixed and i in reduced else ''}" for i in range(rank)]
    keep = o.attribute("keepdims", 1)
    dims = [("1" if i in reduced else f) for i, f in enumerate(names) if keep or i not in reduced]
    linear = o.type in _LINEAR
    how = {f"d{i}": combine for i in reduced}
    modes: dict[str, tuple[str, ...]] = {}
    if combine in (Combine.MAX, Combine.MIN) and o.is_float(0):
        modes = {f"^d{i}": (f"d{i}",) for i in sorted(reduced)}
        how |= dict.fromkeys(modes, Combine.INNER)
    inside = [f for f, c in how.items() if c is Combine.INNER]
    travels = tuple(f"d{i}" for i in range(rank) if i not in reduced)
    return sharded(
        o,
        f"{' '.join(names)}, - -> {' '.join(dims)}",
        kind="reduction",
        combine=how,
        linear=[(0,)] if linear else [],
        differentiable=(0,),
        saved=() if linear else (0,),
        saved_results=(0,) if o.type in _OF_RESULT else (),
        flops=float(math.prod(o.shape(0))),
        backward_flops=float(math.prod(o.shape(0))),
        inner=[c for f in sorted(inside) for c in _collectives(o, f, travels)],
        modes=modes,
    )


def _collectives(o: Operator, factor: str, dims: tuple[str, ...]) -> list[InnerCollective]:
    """Sums and exponentials travel in at least four bytes; a product and its gradient need those of all ranks."""
    wide = max(4, o.item_bytes)
    if o.type == "ReduceProd":
        gathered = InnerCollective(factor, "all_gather", dims, o.item_bytes)
        back = InnerCollective(factor, "all_gather", dims, o.item_bytes, backward=True)
        return [gathered, back] if o.is_float(0) else [gathered]
    if o.type in ("ReduceMax", "ReduceMin"):
        extremum = o.type[len("Reduce") :].lower()
        return [
            InnerCollective(factor, "all_reduce", dims, o.item_bytes, reduction=extremum),
            InnerCollective(factor, "all_reduce", dims, wide, backward=True, statistic=True),  # how many tie
        ]
    summed = InnerCollective(factor, "all_reduce", dims, wide, statistic=o.is_float(0))
    if o.type == "ReduceLogSumExp":
        return [InnerCollective(factor, "all_reduce", dims, wide, reduction="max", statistic=True), summed]
    return [summed]


for _type in _COMBINE:
    rule(_type)(_reduce)


@rule("ArgMax", "ArgMin")
def _arg(o: Operator) -> Rule:
    """Along a split axis the ranks exchange their candidates, value and place."""
    axis = o.axis(0)
    names = [f"d{i}" for i in range(o.rank(0))]
    keep = o.attribute("keepdims", 1)
    dims = [("1" if i == axis else f) for i, f in enumerate(names) if keep or i != axis]
    others = tuple(f for i, f in enumerate(names) if i != axis)
    value = max(1, _item_bytes(o))
    return sharded(
        o,
        f"{' '.join(names)} -> {' '.join(dims)}",
        kind="reduction",
        flops=float(math.prod(o.shape(0))),
        combine={names[axis]: Combine.INNER},
        inner=[
            InnerCollective(names[axis], "all_gather", others, value),
            InnerCollective(names[axis], "all_gather", others, 8, statistic=True),
        ],
    )


def _item_bytes(o: Operator) -> int:
    return ITEM_BYTES.get(o.input_types[0], 4)


@rule("CumSum", "CumProd")
def _cumulate(o: Operator) -> Rule:
    """Along a split axis every rank adds (multiplies) the totals of the shards before its own; of a product the
    backward also needs how gradients run through those after it."""
    rank = o.rank(0)
    axis = (o.ints(1, "axis") or (0,))[0] % rank
    names = [f"d{i}" for i in range(rank)]
    others = tuple(f for i, f in enumerate(names) if i != axis)
    linear = o.type == "CumSum"
    return sharded(
        o,
        f"{' '.join(names)}, - -> {' '.join(names)}",
        kind="reduction",
        linear=[(0,)] if linear else [],
        differentiable=(0,),
        saved=() if linear else (0,),
        inner=[
            InnerCollective(names[axis], "all_gather", others, o.item_bytes),
            InnerCollective(
                names[axis], "all_gather", others, o.item_bytes if linear else 2 * o.item_bytes, backward=True
            ),
        ],
    )


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(o: Operator) -> Rule:
    """X to uint8, scale and zero point: ranks agree on the smallest and the largest element."""
    names = [f"d{i}" for i in range(o.rank(0))]
    return sharded(
        o,
        f"{' '.join(names)} -> {' '.join(names)}, , ",
        combine=dict.fromkeys(names, Combine.INNER),
        inner=[InnerCollective(f, "all_reduce", (), 8, reduction="max", statistic=True) for f in names],
        flops=3.0 * math.prod(o.shape(0)),
    )
