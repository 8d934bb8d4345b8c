"""ONNX Runtime's MultiHeadAttention, said in terms of ONNX's Attention."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, NoVjpError, register, unbroadcast
from planner.operators.attention.gradient import Attention, attention_backward
from planner.operators.attention.masked import merge_heads, split_heads

__all__ = ["as_attention", "from_attention", "is_attention"]

Operands = Sequence["Array | None"]
_MASK_FILTER = -10000.0


def is_attention(op: Op, inputs: Operands) -> bool:
    """No cache that is shared, and no mask that packs several sequences into one."""
    padding = inputs[4] if len(inputs) > 4 else None
    shared = any(x is not None for x in inputs[8:])
    query = inputs[0]
    assert query is not None
    return not shared and (padding is None or padding.ndim != 1 or len(padding) == len(query))


def as_attention(op: Op, inputs: Operands, keys: int | None = None) -> tuple[Op, list[Array | None]]:
    """Attention with four-dimensional operands: biases added, masks as numbers to be added to scores.

    `keys` is the whole operator's number of keys, past ones included, where these are parts.
    Keys that are hidden by a padding mask get a large negative number, not −∞: rows without any key see all of them.
    """
    query, key, value, bias, padding, scores, past_k, past_v = (*inputs, *[None] * 8)[:8]
    assert query is not None
    heads = op.attributes["num_heads"]
    if query.ndim == 5:
        q, k, v = (query[:, :, :, j].transpose(0, 2, 1, 3) for j in range(3))
    else:
        assert key is not None
        q = split_heads(query, heads)
        if key.ndim == 5:
            k, v = (key[:, :, :, j].transpose(0, 2, 1, 3) for j in range(2))
        else:
            assert value is not None
            k, v = split_heads(key, heads), split_heads(value, heads)
    if bias is not None:
        parts = [p.reshape(1, heads, 1, -1) for p in np.split(bias, _cuts(q, heads))]
        q = q + parts[0]
        if key is None or key.ndim != 4:  # keys of another sequence come with their bias
            k, v = k + parts[1], v + parts[2]
    if keys is None:
        keys = k.shape[2] + (0 if past_k is None else past_k.shape[2])
    mask = None if padding is None else _hidden(op, padding, keys, q)
    if scores is not None:
        mask = scores if mask is None else mask + scores
    attributes = {"is_causal": int(op.attributes.get("unidirectional", 0))}
    if op.attributes.get("scale"):
        attributes["scale"] = op.attributes["scale"]
    if len(op.outputs) > 3:
        attributes["qk_matmul_output_mode"] = 3
    names = ("q", "k", "v", *(n if x is not None else "" for n, x in (("m", mask), ("pk", past_k), ("pv", past_v))))
    return Op(op.name, "Attention", names, op.outputs, attributes, 23), [q, k, v, mask, past_k, past_v]


def from_attention(op: Op, inputs: Operands, found: Operands) -> list[Array | None]:
    """Gradients of the operands from those of Attention's."""
    query, key, value, bias, _, scores = (*inputs, *[None] * 6)[:6]
    dq, dk, dv, dmask, dpast_k, dpast_v = (*found, *[None] * 6)[:6]
    assert query is not None
    assert dq is not None
    assert dk is not None
    assert dv is not None
    other = key is not None and key.ndim == 4
    dbias = None
    if bias is not None:
        sums = [g.sum(axis=(0, 2)).reshape(-1) for g in (dq, dk, dv)]
        dbias = np.concatenate([sums[0], *(s * (not other) for s in sums[1:])])
    along = [g.transpose(0, 2, 1, 3) for g in (dq, dk, dv)]
    dscores = None if scores is None or dmask is None else unbroadcast(dmask, scores.shape)
    rest = [dbias, None, dscores, dpast_k, dpast_v]
    if query.ndim == 5:
        return [np.stack(along, axis=3), None, None, *rest]
    if key is not None and key.ndim == 5:
        return [merge_heads(dq, 3), np.stack(along[1:], axis=3), None, *rest]
    assert key is not None
    assert value is not None
    return [merge_heads(dq, 3), merge_heads(dk, key.ndim), merge_heads(dv, value.ndim), *rest]


def _cuts(q: Array, heads: int) -> list[int]:
    width = heads * q.shape[-1]
    return [width, 2 * width]


def _hidden(op: Op, padding: Array, keys: int, q: Array) -> Array:
    """Lengths (b), or ones where a key may be seen: (b, t), (b, s, t)."""
    if padding.ndim == 1:
        padding = np.arange(keys) < padding[:, None]
    low = op.attributes.get("mask_filter_value", _MASK_FILTER)
    added = np.where(padding, 0.0, low).astype(np.float32 if q.dtype.itemsize < 4 else q.dtype)
    return added[:, None, None] if added.ndim == 2 else added[:, None]


@register("com.microsoft::MultiHeadAttention")
def _multi_head_attention(c: Call) -> list[Array | None]:
    if not is_attention(c.op, c.inputs):
        raise NoVjpError(f"operator {c.op.name} (MultiHeadAttention): no product for shared caches and packed masks")
    op, operands = as_attention(c.op, c.inputs)
    whole = Attention.of(op, operands)
    gradients = [split_heads(c.dy, c.op.attributes["num_heads"]), *c.gradients[1:]]
    wanted = [True, True, True, c.wants(5), True, True]
    found = attention_backward(op, operands, gradients, wanted, whole, np.arange(whole.q.shape[3]))
    return from_attention(c.op, c.inputs, found)
