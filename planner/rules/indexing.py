"""Gathers, scatters and other operators that are steered by indices.

Dimensions that no index refers to are split like any other; index tensors are split together with the
result.  The indexed dimension of a table is a contraction: a rank looks up what lies in its part of the
table and adds zeros for the rest, so that the results are a pending sum.
"""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("Gather")
def _gather(o: Operator) -> Rule:
    """Factor `v` is the indexed dimension.  Split, the lookup is masked and needs to know its offset."""
    axis = o.axis(0)
    table = "v" if o.makes_float else "v!"
    before, after = labels("l", axis), labels("r", o.rank(0) - axis - 1)
    indices = labels("i", o.rank(1))
    return sharded(
        o,
        f"{before} {table} {after}, {indices} -> {before} {indices} {after}",
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=0.0,
        backward_flops=float(math.prod(o.result())),
        aware=["v"],
    )


def _paired(data: tuple[int, ...], indices: tuple[int, ...], axis: int) -> tuple[list[str], list[str]]:
    """Dimensions of data and indices: beside the axis they run together where the indices cover the data."""
    names = [f"d{i}" if a == b else "*" for i, (a, b) in enumerate(zip(data, indices, strict=True))]
    of_data, of_indices = list(names), list(names)
    of_data[axis], of_indices[axis] = "*", "i"
    return of_data, of_indices


@rule("GatherElements")
def _gather_elements(o: Operator) -> Rule:
    data, indices = _paired(o.shape(0), o.shape(1), o.axis(0))
    return sharded(
        o,
        f"{' '.join(data)}, {' '.join(indices)} -> {' '.join(indices)}",
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=0.0,
        backward_flops=float(math.prod(o.result())),
    )


@rule("GatherND")
def _gather_nd(o: Operator) -> Rule:
    batch = int(o.attribute("batch_dims", 0))
    depth = o.shape(1)[-1]
    b = labels("b", batch)
    indices = labels("i", o.rank(1) - 1 - batch)
    rest = labels("r", o.rank(0) - batch - depth)
    return sharded(
        o,
        f"{b} {' '.join('*' * depth)} {rest}, {b} {indices} * -> {b} {indices} {rest}",
        kind="gather",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1,),
        flops=0.0,
        backward_flops=float(math.prod(o.result())),
    )


def _scatter(o: Operator, data: str, indices: str, updates: str) -> Rule:
    """Overwriting and adding are linear in data and updates together.

    Only sums may be taken in parts: then the updates are contracted and the data is added once.
    """
    reduction = str(o.attribute("reduction", "none"))
    linear = reduction in ("none", "add")
    return sharded(
        o,
        f"{'+' if reduction == 'add' else ''}{data}, {indices}, {updates} -> {data}",
        kind="gather",
        whole=[] if reduction == "add" else ["i", *(f"i{k}" for k in range(o.rank(1)))],
        linear=[(0, 2)] if linear else [(0,)] if reduction == "mul" else [],
        differentiable=(0, 2),
        saved=(1,) if linear else (0, 1, 2),
        saved_results=() if linear else (0,),
        flops=float(math.prod(o.shape(2))),
    )


@rule("ScatterElements", "Scatter")
def _scatter_elements(o: Operator) -> Rule:
    data, indices = _paired(o.shape(0), o.shape(1), o.axis(0))
    return _scatter(o, " ".join(data), " ".join(indices), " ".join(indices))


@rule("ScatterND")
def _scatter_nd(o: Operator) -> Rule:
    depth = o.shape(1)[-1]
    indices, rest = labels("i", o.rank(1) - 1), labels("r", o.rank(0) - depth)
    return _scatter(o, f"{' '.join('*' * depth)} {rest}", f"{indices} *", f"{indices} {rest}")


@rule("OneHot")
def _one_hot(o: Operator) -> Rule:
    """The new dimension is compared with all indices and stays whole."""
    names = [f"d{i}" for i in range(o.rank(0))]
    axis = o.axis(-1, len(names) + 1)
    return sharded(o, f"{' '.join(names)}, -, - -> {' '.join([*names[:axis], '*', *names[axis:]])}", kind="gather")


@rule("TopK")
def _top_k(o: Operator) -> Rule:
    axis = o.axis(-1)
    names = " ".join("*" if i == axis else f"d{i}" for i in range(o.rank(0)))
    return sharded(
        o,
        f"{names}, - -> {names}, {names}",
        kind="reduction",
        differentiable=(0,),
        saved_results=(1,),
        flops=float(math.prod(o.shape(0))),
        backward_flops=float(math.prod(o.result())),
    )
