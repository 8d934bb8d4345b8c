"""Shapes of what attention gives, where ONNX does not say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, dtype_of, first_of, given, infers, shape_of
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


@infers("com.microsoft::Attention", "com.microsoft::QAttention")
def _attention(op: Op, operands: Operands) -> list[Inferred]:
    """X (b, s, d) with a weight (d, q + k + v); results (b, s, v) and what is handed on."""
    x, w = first_of(operands), shape_of(operands, 1)
    if x is None or w is None or len(x[1]) != 3:
        return [UNKNOWN]
    sizes = op.attributes.get("qkv_hidden_sizes")
    values = int(sizes[2]) if sizes else w[-1] // 3
    quantised = split_type(op.type)[1] == "QAttention"
    dtype = dtype_of(operands, 3, "float32") if quantised else x[0]
    heads = int(op.attributes.get("num_heads", 1))
    past = shape_of(operands, 8 if quantised else 4)
    total = x[1][1] + (past[3] if past and len(past) == 5 else 0)
    return [(dtype, (*x[1][:2], values)), (dtype, (2, x[1][0], heads, total, values // heads))]


@infers("com.microsoft::DecoderMaskedMultiHeadAttention", "com.microsoft::MultiHeadAttention")
def _multi_head(op: Op, operands: Operands) -> list[Inferred]:
    """Q (b, s, d), or packed (b, s, h, 3, e); keys and values apart, as heads, or packed (b, t, h, 2, e)."""
    q, k, v = first_of(operands), shape_of(operands, 1), shape_of(operands, 2)
    if q is None:
        return [UNKNOWN]
    heads = int(op.attributes.get("num_heads", 1))
    if len(q[1]) == 5:
        b, s, h, _, e = q[1]
        return [(q[0], (b, s, h * e))]
    if len(q[1]) != 3 or k is None:
        return [UNKNOWN]
    b, s, hidden = q[1]
    if len(k) == 5 or v is None:
        return [(q[0], (b, s, hidden))]
    values = v[2] if len(v) == 3 else v[1] * v[3]
    past = shape_of(operands, 6)
    tokens = (v[1] if len(v) == 3 else v[2]) + (past[2] if past and len(past) == 4 else 0)
    if past and (op.attributes.get("past_present_share_buffer", 0) or len(operands) > 8):
        tokens = past[2]  # the cache is written in place
    present = (b, heads, tokens, hidden // heads), (b, heads, tokens, values // heads)
    return [(q[0], (b, s, values)), (q[0], present[0]), (q[0], present[1])]


@infers("com.microsoft::GroupQueryAttention")
def _group_query(op: Op, operands: Operands) -> list[Inferred]:
    """Q (b, s, h·e), or Q, K and V packed in its last dimension; what is handed on is as long as the cache."""
    q = first_of(operands)
    if q is None or len(q[1]) != 3:
        return [UNKNOWN]
    heads, key_heads = int(op.attributes.get("num_heads", 1)), int(op.attributes.get("kv_num_heads", 1))
    b, s, hidden = q[1]
    packed = given(operands, 1) is None
    depth = hidden // (heads + 2 * key_heads if packed else heads)
    past = shape_of(operands, 3)
    total = operands[6].value if len(operands) > 6 and operands[6] is not None else None
    length = None
    if past is None:
        length = s
    elif total is not None:
        length = max(past[2], int(np.max(total)))
    present = (q[0], None if length is None else (b, key_heads, length, depth))
    return [(q[0], (b, s, heads * depth)), present, present]


@counts("Attention")
def _work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    """Of heads apart (b, h, s, e): queries with keys, and what they attend to with values."""
    q, k, v = (*shapes, None)[:3]
    if q is None or k is None or len(q) != 4 or len(k) != 4:
        return 0
    return 2 * math.prod(q[:3]) * k[2] * (q[3] + (v or k)[-1])
