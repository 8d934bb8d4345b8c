"""Attention of queries that stand in a whole sequence: which keys they see is written out as a mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.emit.onnx.ranks.local import Local, refusal
from planner.emit.onnx.ranks.registry import Operands, lowers, needed
from planner.emit.onnx.ranks.writer import Value, Writer
from planner.frontends.file.nodes import node_of
from planner.operators.attention.rule import RING

__all__: list[str] = []

_MASK = 3  # operand


@lowers("Attention")
def _attention(w: Writer, here: Local, operands: Operands) -> list[Value | None]:
    op, split = here.op, here.place.shards
    if RING in split:
        raise refusal(op, here.place, "keys go round a ring of ranks, whose partial softmax has no operator in ONNX")
    if "t" in split or "p" in split:
        raise refusal(op, here.place, "keys are split, and what ranks find of them is joined by no operator of ONNX")
    # What is left is causal: nothing else has to know where its queries stand.
    further = any(op.outputs[1:]) or any(x is not None for x in operands[_MASK + 1 :])
    windows = any(int(op.attributes.get(f"{side}_window_size", -1)) >= 0 for side in ("left", "right"))
    if further or windows:
        raise refusal(op, here.place, "queries are split while it has past keys, further results or a sliding window")
    q, k, v = (needed(x) for x in operands[:3])
    at = q.rank - 2
    rows = np.arange(q.dims[at])[:, None] + here.place.offset.get("s", 0)
    seen = w.constant(np.arange(k.dims[at]) <= rows)
    mask = operands[_MASK] if len(operands) > _MASK else None
    if mask is not None and mask.dims[-1] != k.dims[at]:
        raise refusal(op, here.place, "its mask is shorter than its keys")
    if mask is not None and mask.dtype == "bool":
        seen = w.join("And", mask, seen, "bool")
    elif mask is not None:
        seen = w.where(seen, mask, w.number(float("-inf"), mask))
    y = w.declare(w.fresh(f"{op.name}/local"), q.dtype, here.shapes[0])
    plain = {name: value for name, value in op.attributes.items() if name != "is_causal"}
    names = tuple(x.name for x in (q, k, v, seen))
    w.raw(node_of(replace(op, inputs=names, outputs=(y.name,), attributes=plain)))
    return [y]
