"""The largest (smallest) elements along a split dimension: every rank proposes its own, and all choose alike."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner.emit.onnx.ranks.local import Local, all_gather
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer

__all__: list[str] = []


@lowers("TopK")
def _top_k(w: Writer, here: Local, operands: Operands) -> list[Value]:
    """Shards follow each other in the order of their ranks: of equal candidates the first has the lowest index."""
    w.need(11)
    x = needed(operands[0])
    given = here.integers(1, "k")
    assert given is not None
    axis, count, group = here.axis(-1, x.rank), given[0], here.groups["v"]
    mine, places = _best(w, x, axis, min(count, x.dims[axis]), here)
    offset = w.constant(np.array(here.place.offset["v"], dtype=np.int64))
    values = all_gather(w, mine, group, axis)
    indices = all_gather(w, w.join("Add", places, offset), group, axis)
    best, chosen = _best(w, values, axis, count, here)
    return [best, w.op("GatherElements", [indices, chosen], "int64", chosen.shape, axis=axis)]


def _best(w: Writer, x: Value, axis: int, count: int, here: Local) -> tuple[Value, Value]:
    shape = (*x.dims[:axis], count, *x.dims[axis + 1 :])
    values = w.declare(w.fresh(f"{w.scope}/best"), x.dtype, shape)
    places = w.declare(w.fresh(f"{w.scope}/places"), "int64", shape)
    attributes: dict[str, Any] = {"axis": axis, "largest": int(here.op.attributes.get("largest", 1)), "sorted": 1}
    w.several("TopK", [x, w.constant(np.array([count], dtype=np.int64))], [values, places], **attributes)
    return values, places
