"""Attention where ONNX Runtime's kernel says something else than the operator, or refuses its operands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.local import in_place_of_runtime
from planner.kernels.session import run_node
from planner.operators.attention.gradient import Attention, attention_forward
from planner.operators.attention.gradient_microsoft import as_attention
from planner.operators.attention.masked import merge_heads

__all__: list[str] = []

Operands = Sequence["Array | None"]


def _attention(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime 1.31 numbers the stages of the scores that are handed out in another order than ONNX 1.23, gives
    other numbers beyond the end of a padded cache, and refuses masks that broadcast over queries or keys, short ones,
    and past keys that are not handed on."""
    mask, past, _, valid = (*inputs[3:], *[None] * 4)[:4]
    presents, scores = any(op.outputs[1:3]), any(op.outputs[3:])
    unusual = scores or valid is not None or (past is not None and not presents)
    if not unusual and (mask is None or mask.shape[-2:] == _sequences(inputs)):
        return None
    whole = Attention.of(op, inputs)
    return attention_forward(op, inputs, whole, np.arange(whole.q.shape[3]))


def _sequences(inputs: Operands) -> tuple[int, int]:
    """Numbers of queries and of keys."""
    q, k, past = inputs[0], inputs[1], inputs[4] if len(inputs) > 4 else None
    assert q is not None
    assert k is not None
    return q.shape[-2 if q.ndim == 4 else 1], k.shape[-2 if k.ndim == 4 else 1] + (0 if past is None else past.shape[2])


def _multi_head_attention(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime has packed operands and scores that are handed out on other devices only, and no doubles."""
    _check_cache(op, inputs, 6)
    packed = any(x is not None and x.ndim == 5 for x in inputs[:2])
    if not packed and not any(op.outputs[3:]) and np.asarray(inputs[0]).dtype != np.float64:
        return None
    attention, operands = as_attention(op, inputs)
    whole = Attention.of(attention, operands)
    y, *rest = attention_forward(attention, operands, whole, np.arange(whole.q.shape[3]))
    return [None if y is None else merge_heads(y, 3), *rest]


def _decoder_attention(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    _check_cache(op, inputs, 5)
    return None


def _check_cache(op: Op, inputs: Operands, at: int) -> None:
    """ONNX Runtime writes beyond a shared cache that does not fit.  ValueError instead."""
    query, past_k, past_v, length = (*inputs, *[None] * 9)[0], *(*inputs, *[None] * 9)[at : at + 3]
    if query is None or past_k is None or past_v is None or length is None:
        return
    heads, used = op.attributes["num_heads"], int(length.reshape(-1)[0]) + query.shape[1]
    for cache in (past_k, past_v):
        if cache.shape[:2] != (query.shape[0], heads) or cache.shape[2] < used or cache.shape != past_k.shape:
            raise ValueError(f"operator {op.name}: a cache of shape {cache.shape} for {used} tokens and {heads} heads")
    for x in inputs[:3]:
        if inputs[1] is not None and x is not None and x.shape != (*query.shape[:2], heads * past_k.shape[3]):
            raise ValueError(f"operator {op.name}: a cache of depth {past_k.shape[3]} for an operand {x.shape}")


def _projected_attention(op: Op, inputs: Operands) -> Sequence[Array | None] | None:
    """ONNX Runtime 1.31 reads a bias even where there is none."""
    x, weight, bias = (*inputs, None)[:3]
    if bias is not None or x is None or weight is None:
        return None
    filled = dataclasses.replace(op, inputs=(*op.inputs[:2], "bias", *op.inputs[3:]))
    return run_node(filled, [x, weight, np.zeros(weight.shape[1], x.dtype), *inputs[3:]])


in_place_of_runtime(
    {
        "Attention": _attention,
        "com.microsoft::Attention": _projected_attention,
        "com.microsoft::DecoderMaskedMultiHeadAttention": _decoder_attention,
        "com.microsoft::MultiHeadAttention": _multi_head_attention,
    }
)
