"""Operators that need to know which part of the whole they hold, and nothing of other ranks."""

from __future__ import annotations

import math

import numpy as np

from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.operators.layout.split import whole_shape
from planner.verify.data import numpy_dtype

__all__: list[str] = []


@lowers("Reshape", "Squeeze")
def _reshaped(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """The result's local shape follows from its factors."""
    x = needed(operands[0])
    if here.op.type == "Squeeze":
        whole = whole_shape(x.dims, here.rule.operands[0], here.place)
        return [w.reshape(x, [n for n, all_ in zip(x.dims, whole, strict=True) if all_ != 1])]
    dims = here.rule.results[0] or ()
    shape = [math.prod(here.rule.factors[f] // here.place.shards.get(f, 1) for f in d) for d in dims]
    return [w.reshape(x, shape)]


@lowers("Tile")
def _tiled(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Factor `k…` counts the copies along a dimension."""
    x, repeats = needed(operands[0]), here.integers(1, "repeats")
    assert repeats is not None
    local = [r // here.place.shards.get(f"k{i}", 1) for i, r in enumerate(repeats)]
    shape = tuple(n * r for n, r in zip(x.dims, local, strict=True))
    return [w.op("Tile", [x, w.constant(np.array(local, dtype=np.int64))], x.dtype, shape)]


@lowers("Trilu")
def _triangle(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Zeros outside the triangle of the whole matrix."""
    x = needed(operands[0])
    if len(operands) > 1 and operands[1] is not None and here.known[1] is None:
        raise refusal(here.op, here.place, "its diagonal is computed at run time")
    k = int(here.known[1].reshape(())) if len(here.known) > 1 and here.known[1] is not None else 0
    rows = np.arange(x.dims[-2])[:, None] + here.place.offset.get("r", 0)
    columns = np.arange(x.dims[-1]) + here.place.offset.get("c", 0)
    inside = columns - rows >= k if here.op.attributes.get("upper", 1) else columns - rows <= k
    return [w.where(w.constant(inside), x, w.number(0, x))]


@lowers("EyeLike")
def _eye(w: Writer, here: Local, operands: Operands) -> list[Value]:
    x = needed(operands[0])
    rows = np.arange(x.dims[0])[:, None] + here.place.offset.get("r", 0)
    columns = np.arange(x.dims[1]) + here.place.offset.get("c", 0)
    made = w.constant((columns - rows == int(here.op.attributes.get("k", 0))).astype(np.uint8))
    return [w.op("Identity", [made], made.dtype, made.shape)]  # the result's own type is put on behind


@lowers("Range")
def _range(w: Writer, here: Local, operands: Operands) -> list[Value]:
    start, step = needed(operands[0]), needed(operands[2])
    first, count = here.place.offset["d"], here.rule.factors["d"] // here.place.shards["d"]
    places = w.constant(np.arange(first, first + count).astype(numpy_dtype(start.dtype)))
    return [w.join("Add", w.join("Mul", places, step), start)]


@lowers("Shape", "Size")
def _sizes(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Those of the whole."""
    whole = np.array(whole_shape(needed(operands[0]).dims, here.rule.operands[0], here.place), dtype=np.int64)
    attributes = here.op.attributes
    if here.op.type == "Size":
        found = np.array(whole.prod(), dtype=np.int64)
    else:
        found = whole[attributes.get("start", 0) : attributes.get("end", len(whole))]
    constant = w.constant(found)
    return [w.op("Identity", [constant], "int64", constant.shape)]


@lowers("OneHot")
def _one_hot(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Each rank compares with the classes of its part; indices of another type count as int64, as ONNX has it."""
    w.need(13)
    indices, values = w.cast(needed(operands[0]), "int64"), needed(operands[2])
    axis = here.axis(-1, indices.rank + 1)
    classes = here.rule.factors["v"]
    first, count = here.place.offset["v"], classes // here.place.shards["v"]
    behind = w.join("Less", indices, w.constant(np.array(0)), "bool")
    at = w.where(behind, w.join("Add", indices, w.constant(np.array(classes))), indices)
    mine = np.arange(first, first + count).reshape((-1,) + (1,) * (indices.rank - axis))
    hot = w.join("Equal", w.expand(at, axis), w.constant(mine), "bool")
    off, on = (w.reshape(w.slice(values, 0, i, i + 1), ()) for i in (0, 1))
    return [w.where(hot, on, off)]
