"""How attention carries a new size."""

from __future__ import annotations

from collections.abc import Mapping

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.broadcasting import carry_first, share
from planner.frontends.resized.carry import Carrier
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@carries("Attention")
def _attention(c: Carrier, op: Op) -> None:
    """Q, K, V share the batch; the mask [batch, heads, queries, keys] follows it and both lengths."""
    q, k, v = op.inputs[:3]
    length = len(c.before(q)) - 2
    for axis, group in ((0, (q, k, v)), (length, (k, v))):
        moved = next((c.after(t)[axis] for t in group if c.after(t)[axis] != c.before(t)[axis]), None)
        for t in group if moved is not None else ():
            c.demand(t, axis, moved or 1, op)
    mask = op.inputs[3] if len(op.inputs) > 3 else ""
    if not mask:
        return
    rank = len(c.before(mask))
    for back, (t, axis) in {4: (q, 0), 2: (q, length), 1: (k, length)}.items():
        if rank >= back and c.before(mask)[rank - back] == c.before(t)[axis] != 1:
            c.demand(mask, rank - back, c.after(t)[axis], op)


# Operand → its batch dimension, of ONNX Runtime's fused attentions: cached keys and values, masks and lengths follow
# the batch of the queries.
_BATCH: Mapping[str, Mapping[int, int]] = {
    "com.microsoft::Attention": {0: 0, 3: 0, 4: 1, 5: 0},
    "com.microsoft::DecoderMaskedMultiHeadAttention": {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0, 6: 0},
    "com.microsoft::GroupQueryAttention": {0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0},
    "com.microsoft::MultiHeadAttention": {0: 0, 1: 0, 2: 0, 4: 0, 5: 0, 6: 0, 7: 0},
    "com.microsoft::QAttention": {0: 0, 5: 0, 8: 1},
}


@carries(*_BATCH)
def _fused(c: Carrier, op: Op) -> None:
    """Where queries, keys and values are given apart, keys and values share their length."""
    share(c, op, _BATCH[op.type])
    name = split_type(op.type)[1]
    if name == "GroupQueryAttention" or (name == "MultiHeadAttention" and all(op.inputs[1:3])):
        share(c, op, {1: 1, 2: 1})
    carry_first(c, op)
