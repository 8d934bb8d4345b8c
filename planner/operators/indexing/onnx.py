"""Look-ups in a table of which every rank holds a part: what falls into it, and zeros for the rest, a pending sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.verify.data import numpy_dtype

__all__: list[str] = []


def _local(w: Writer, indices: Value, rows: int, whole: int, offset: int) -> tuple[Value, Value]:
    """Indices among this rank's rows, 0 where they are others', and whether they are its."""

    def integer(value: int) -> Value:
        return w.constant(np.array(value, dtype=numpy_dtype(indices.dtype)))

    behind = w.join("Less", indices, integer(0), "bool")
    counted = w.where(behind, w.join("Add", indices, integer(whole)), indices)
    local = w.join("Sub", counted, integer(offset))
    above = w.join("Greater", local, integer(-1), "bool")
    held = w.join("And", above, w.join("Less", local, integer(rows), "bool"))
    return w.where(held, local, integer(0)), held


@lowers("GatherElements")
def _gather_elements(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Along the axis; where the data is split along a dimension that the indices do not cover, places would count."""
    data, indices = needed(operands[0]), needed(operands[1])
    if any(f.startswith("w") for f in here.place.shards):
        raise refusal(here.op, here.place, "its indices cover a part of a dimension that is split")
    axis = here.axis(0, data.rank)
    at, held = _local(w, indices, data.dims[axis], here.rule.factors["v"], here.place.offset["v"])
    found = w.op("GatherElements", [data, at], data.dtype, indices.shape, axis=axis)
    return [w.where(held, found, w.number(0, found))]


@lowers("GatherND")
def _gather_nd(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """A component of the coordinates after the other."""
    data, indices = needed(operands[0]), needed(operands[1])
    batch, depth = int(here.op.attributes.get("batch_dims", 0)), indices.dims[-1]
    columns, held = [], None
    for k, column in enumerate(w.parts(indices, indices.rank - 1, [1] * depth)):
        rows = data.dims[batch + k]
        whole, offset = rows * here.place.shards.get(f"v{k}", 1), here.place.offset.get(f"v{k}", 0)
        at, mine = _local(w, column, rows, whole, offset)
        columns.append(at)
        held = mine if held is None else w.join("And", held, mine)
    assert held is not None
    rest = data.dims[batch + depth :]
    shape = (*indices.dims[:-1], *rest)
    attributes: dict[str, Any] = {"batch_dims": batch} if batch else {}
    found = w.op("GatherND", [data, w.concat(columns, indices.rank - 1)], data.dtype, shape, **attributes)
    mask = w.reshape(held, (*indices.dims[:-1], *(1,) * len(rest)))
    return [w.where(mask, found, w.number(0, found))]
