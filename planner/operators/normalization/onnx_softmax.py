"""Softmax and its like while the dimensions that they are taken over are split: a maximum and a sum of each row."""

from __future__ import annotations

import math

import numpy as np

from planner.emit.onnx.ranks.local import Local, all_gather
from planner.emit.onnx.ranks.reduced import reduced_factors, total
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer

__all__: list[str] = []


def _axes(here: Local, rank: int) -> tuple[int, ...]:
    """Before version 13 the operand was seen as a matrix, cut at `axis`."""
    matrix = here.op.opset < 13
    axis = here.axis(1 if matrix else -1, rank)
    return tuple(range(axis, rank)) if matrix else (axis,)


@lowers("Softmax", "LogSoftmax")
def _softmax(w: Writer, here: Local, operands: Operands) -> list[Value]:
    x = w.widened(needed(operands[0]))
    axes = _axes(here, x.rank)
    largest = total(w, w.reduce("ReduceMax", x, axes), here, "max")
    shifted = w.join("Sub", x, largest)
    e = w.each("Exp", shifted)
    sums = total(w, w.reduce("ReduceSum", e, axes), here)
    if here.op.type == "LogSoftmax":
        return [w.join("Sub", shifted, w.each("Log", sums))]
    return [w.join("Div", e, sums)]


@lowers("Hardmax")
def _hardmax(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """One where the row has its first maximum: of equal ones that of the first rank, whose shard comes first."""
    x = needed(operands[0])
    w.need(13)
    (factor,) = reduced_factors(here)
    axes = _axes(here, x.rank)
    rows = x.dims[: axes[0]]
    behind = x.dims[axes[-1] + 1 :]
    flat = w.reshape(x, (*rows, w.elements(x) // max(math.prod((*rows, *behind)), 1), *behind))
    axis = axes[0]
    best = w.op("ArgMax", [flat], "int64", (*rows, 1, *behind), axis=axis, keepdims=1)
    mine = w.reduce("ReduceMax", flat, [axis])
    gathered = all_gather(w, mine, here.groups[factor], axis)
    winner = w.op("ArgMax", [gathered], "int64", (*rows, 1, *behind), axis=axis, keepdims=1)
    chosen = w.join("Equal", winner, _integer(w, here.place.index[factor]), "bool")
    place = w.op("Range", [_integer(w, 0), _integer(w, flat.dims[axis]), _integer(w, 1)], "int64", (flat.dims[axis],))
    column = w.reshape(place, (flat.dims[axis], *(1,) * len(behind)))
    hot = w.join("And", w.join("Equal", column, best, "bool"), chosen)
    return [w.reshape(w.cast(hot, x.dtype), x.dims)]


def _integer(w: Writer, value: int) -> Value:
    return w.constant(np.array(value, dtype=np.int64))
