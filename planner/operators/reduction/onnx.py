"""Reductions, running sums and extrema while the dimension that they run along is split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner.emit.onnx.ranks.local import Local, all_gather, refusal
from planner.emit.onnx.ranks.reduced import inside, over
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.verify.data import numpy_dtype

__all__: list[str] = []


def _axes(here: Local, x: Value) -> tuple[int, ...]:
    given = here.integers(1, "axes")
    return tuple(dict.fromkeys(a % x.rank for a in given)) if given else tuple(range(x.rank))


def _shaped(w: Writer, here: Local, y: Value, axes: Sequence[int]) -> Value:
    """From kept dimensions of one element to what the operator returns."""
    if here.op.attributes.get("keepdims", 1):
        return y
    return w.reshape(y, tuple(n for d, n in enumerate(y.dims) if d not in axes))


def _function_of_sum(
    before: Callable[[Writer, Value], Value], after: Callable[[Writer, Value], Value]
) -> Callable[[Writer, Local, Operands], list[Value]]:
    """`after` applied to the sum over all shards of `before`."""

    def write(w: Writer, here: Local, operands: Operands) -> list[Value]:
        x = w.widened(needed(operands[0]))
        axes = _axes(here, x)
        total = over(w, w.reduce("ReduceSum", before(w, x), axes), inside(here), here)
        return [_shaped(w, here, after(w, total), axes)]

    return write


def _square(w: Writer, x: Value) -> Value:
    return w.join("Mul", x, x)


lowers("ReduceL2")(_function_of_sum(_square, lambda w, x: w.each("Sqrt", x)))
lowers("ReduceLogSum")(_function_of_sum(lambda w, x: x, lambda w, x: w.each("Log", x)))


@lowers("ReduceLogSumExp")
def _log_sum_exp(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """An infinite maximum is not subtracted."""
    w.need(13)
    x = w.widened(needed(operands[0]))
    axes = _axes(here, x)
    largest = over(w, w.reduce("ReduceMax", x, axes), inside(here), here, "max")
    endless = w.op("IsInf", [largest], "bool", largest.shape)
    base = w.where(endless, w.number(0, largest), largest)
    e = w.each("Exp", w.join("Sub", x, base))
    total = over(w, w.reduce("ReduceSum", e, axes), inside(here), here)
    return [_shaped(w, here, w.join("Add", w.each("Log", total), base), axes)]


@lowers("ReduceMean")
def _integer_mean(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Of integers, whose quotient is cut off towards zero; a mean of floats is a pending sum instead."""
    x = needed(operands[0])
    axes = _axes(here, x)
    total = over(w, w.reduce("ReduceSum", x, axes), inside(here), here)
    count = math.prod(x.dims[a] for a in axes) * math.prod(here.place.shards[f] for f in inside(here))
    number = w.constant(np.array(count, dtype=numpy_dtype(x.dtype)))
    return [_shaped(w, here, w.join("Div", total, number), axes)]


@lowers("ReduceProd")
def _product(w: Writer, here: Local, operands: Operands) -> list[Value]:
    x = needed(operands[0])
    axes = _axes(here, x)
    y = w.reduce("ReduceProd", x, axes)
    for f in inside(here):
        y = w.reduce("ReduceProd", all_gather(w, y, here.groups[f], axes[0]), axes)
    return [_shaped(w, here, y, axes)]


@lowers("ReduceMax", "ReduceMin")
def _extremum(w: Writer, here: Local, operands: Operands) -> list[Value]:
    x = needed(operands[0])
    axes = _axes(here, x)
    op = "max" if here.op.type == "ReduceMax" else "min"
    return [_shaped(w, here, over(w, w.reduce(here.op.type, x, axes), inside(here), here, op), axes)]


@lowers("ArgMax", "ArgMin")
def _arg(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Candidates of all ranks in the order of their shards: the first of equals wins, or the last on request."""
    x = needed(operands[0])
    w.need(12)
    axis = here.axis(0, x.rank)
    factor = f"d{axis}"
    kept = tuple(1 if d == axis else n for d, n in enumerate(x.dims))
    last = int(here.op.attributes.get("select_last_index", 0))
    told: dict[str, Any] = {"axis": axis, "keepdims": 1, **({"select_last_index": 1} if last else {})}
    at = w.op(here.op.type, [x], "int64", kept, **told)
    best = w.op("GatherElements", [x, at], x.dtype, kept, axis=axis)
    offset = w.constant(np.array(here.place.offset[factor], dtype=np.int64))
    values = all_gather(w, best, here.groups[factor], axis)
    places = all_gather(w, w.join("Add", at, offset), here.groups[factor], axis)
    winner = w.op(here.op.type, [values], "int64", kept, **told)
    found = w.op("GatherElements", [places, winner], "int64", kept, axis=axis)
    return [_shaped(w, here, found, (axis,))]


@lowers("CumSum")
def _running_sum(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """The local one, and the sums of the shards before it (behind it, in reverse)."""
    x = needed(operands[0])
    at = here.known[1]
    if at is None:
        raise refusal(here.op, here.place, "its axis is computed at run time")
    axis = int(at.reshape(())) % x.rank
    factor = f"d{axis}"
    told: dict[str, Any] = {k: int(v) for k, v in here.op.attributes.items() if k in ("exclusive", "reverse")}
    local = w.op("CumSum", [x, w.constant(np.array(axis, dtype=np.int64))], x.dtype, x.shape, **told)
    sums = all_gather(w, w.reduce("ReduceSum", x, [axis]), here.groups[factor], axis)
    me, ranks = here.place.index[factor], here.place.shards[factor]
    first, stop = (me + 1, ranks) if told.get("reverse") else (0, me)
    if first == stop:
        return [local]
    return [w.join("Add", local, w.reduce("ReduceSum", w.slice(sums, axis, first, stop), [axis]))]
