"""ONNX Runtime's attention while heads are split that lie scattered in an operand, or sequences are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import vjp
from planner.kernels.local import run_local
from planner.kernels.split import kernel
from planner.kernels.spmd import Coroutine, ShardContext
from planner.operators.attention.gradient_microsoft import as_attention, from_attention, is_attention
from planner.operators.attention.masked import merge_heads, split_heads
from planner.operators.attention.split import attention_backward_ranks, attention_forward_ranks

__all__: list[str] = []

Operands = Sequence["Array | None"]
Columns = NDArray[np.int64]


def _columns(place: ShardContext, query: int, value: int) -> Columns:
    """Where this rank's heads lie in [queries | keys | values], whose heads have widths `query`, `query`, `value`."""
    assert place.rule is not None
    heads, groups = place.rule.factors["h"], place.rule.factors.get("g", 1)
    first, here = place.offset.get("h", 0), heads // place.shards.get("h", 1)
    # Groups are split where a rank has one key head: its query heads follow each other.
    start = (first * groups + place.offset.get("g", 0)) * query
    queries = np.arange(start, start + here * (groups // place.shards.get("g", 1)) * query)
    keys = np.arange(first * query, (first + here) * query) + heads * groups * query
    values = np.arange(first * value, (first + here) * value) + heads * (groups + 1) * query
    return np.concatenate([queries, keys, values])


def _taken(x: Array | None, columns: Columns) -> Array | None:
    """A scalar speaks of all columns."""
    return x if x is None or x.size == 1 else x.take(columns, axis=-1)


def _multi_head_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    mine = _own_bias(inputs, place)
    if not is_attention(op, inputs):
        return run_local(op, mine)
    attention, operands = as_attention(op, mine, _keys(place))
    y, *rest = yield from attention_forward_ranks(attention, operands, place)
    return [None if y is None else merge_heads(y, 3), *rest]


def _multi_head_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    heads = op.attributes["num_heads"]
    attention, operands = as_attention(op, _own_bias(inputs, place), _keys(place))
    y, dy = (None if x is None else split_heads(x, heads) for x in (outputs[0], gradients[0]))
    requested = [True, True, True, len(wanted) > 5 and wanted[5], True, True]
    found = yield from attention_backward_ranks(
        attention, operands, [y, *outputs[1:]], [dy, *gradients[1:]], requested, place
    )
    results = from_attention(op, _own_bias(inputs, place), found)
    bias = inputs[3] if len(inputs) > 3 else None
    if bias is not None and "h" in place.shards:  # a pending sum: other heads are other ranks'
        whole = np.zeros_like(bias)
        whole[_bias_columns(place)] = results[3]
        results[3] = whole
    return [g if w else None for g, w in zip(results, wanted, strict=False)]


def _keys(place: ShardContext) -> int | None:
    """Of the whole; None where keys share an operand with others, and are whole."""
    assert place.rule is not None
    factors = place.rule.factors
    return factors["t"] + factors.get("p", 0) if "t" in factors else None


def _bias_columns(place: ShardContext) -> Columns:
    assert place.rule is not None
    value = place.rule.factors["f"]
    return _columns(place, place.rule.factors.get("e", value), value)


def _own_bias(inputs: Operands, place: ShardContext) -> list[Array | None]:
    bias = inputs[3] if len(inputs) > 3 else None
    if bias is None or "h" not in place.shards:
        return list(inputs)
    return [*inputs[:3], bias[_bias_columns(place)], *inputs[4:]]


def _decoder_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Of a packed projection, and of its bias."""
    assert place.rule is not None
    depth = place.rule.factors["f"]
    mine = list(inputs)
    columns = _columns(place, depth, depth)
    if mine[1] is None:
        mine[0] = _taken(mine[0], columns)
    if len(mine) > 10:
        mine[10] = _taken(mine[10], columns)
    return run_local(op, mine)
    yield  # never communicates


def _grouped_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    assert place.rule is not None
    depth = place.rule.factors["e"]
    packed = inputs[1] is None
    return run_local(op, [_taken(inputs[0], _columns(place, depth, depth)) if packed else inputs[0], *inputs[1:]])
    yield  # never communicates


def _projected_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Columns of weight and bias, and of what quantizes the weight."""
    assert place.rule is not None
    weight = inputs[1]
    assert weight is not None
    heads, value = place.rule.factors["h"], place.rule.factors["f"]
    columns = _columns(place, (weight.shape[1] - heads * value) // (2 * heads), value)
    by_column = (1, 2, 4, 7) if op.type.endswith("QAttention") else (1, 2)
    mine = [_taken(x, columns) if i in by_column else x for i, x in enumerate(inputs)]
    sizes = op.attributes.get("qkv_hidden_sizes")
    if sizes:
        local = tuple(int(n) // place.shards.get("h", 1) for n in sizes)
        op = dataclasses.replace(op, attributes={**op.attributes, "qkv_hidden_sizes": local})
    return run_local(op, mine)
    yield  # never communicates


def _rotary_forward(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    return run_local(op, _own_positions(inputs, place))
    yield  # never communicates


def _rotary_backward(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    return vjp(op, _own_positions(inputs, place), outputs, gradients, wanted)
    yield  # never communicates


def _own_positions(inputs: Operands, place: ShardContext) -> list[Array | None]:
    """That of the first token here."""
    first = inputs[1]
    assert first is not None
    return [inputs[0], first + place.offset["s"], *inputs[2:]]


kernel(["com.microsoft::MultiHeadAttention"], _multi_head_forward, _multi_head_backward)
kernel(["com.microsoft::DecoderMaskedMultiHeadAttention"], _decoder_forward)
kernel(["com.microsoft::GroupQueryAttention"], _grouped_forward)
kernel(["com.microsoft::Attention", "com.microsoft::QAttention"], _projected_forward)
kernel(["com.microsoft::RotaryEmbedding"], _rotary_forward, _rotary_backward)
