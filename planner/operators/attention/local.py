"""Attention of every make: ONNX's, ONNX Runtime's with its caches and masks, linear attention, rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array, normalise_axis
from planner.kernels.local import in_double
from planner.operators.attention.gradient import Attention, attention_forward
from planner.operators.attention.gradient_microsoft import as_attention
from planner.operators.attention.masked import merge_heads, split_heads
from planner.operators.elementwise.local import logistic
from planner.operators.linear_attention.gradient import Recurrence
from planner.operators.quantized.local import dequantised
from planner.operators.rotary.gradient import turned

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _attention(op: Op, inputs: Operands) -> Results:
    whole = Attention.of(op, inputs)
    return attention_forward(op, inputs, whole, np.arange(whole.q.shape[3]))


def _at(inputs: Operands, index: int) -> Array | None:
    return inputs[index] if index < len(inputs) else None


def _lengths(padding: Array | None, batch: int) -> Array | None:
    """Of a mask that packs several sequences into one, ONNX Runtime's CPU kernel reads the lengths of the keys."""
    if padding is not None and padding.ndim == 1 and len(padding) > batch:
        return padding[:batch]
    return padding


def _multi_head(op: Op, inputs: Operands) -> Results:
    query = np.asarray(inputs[0])
    operands = [_at(inputs, i) for i in range(8)]
    operands[4] = _lengths(operands[4], query.shape[0])
    used, buffers = _at(inputs, 8), operands[6:8]
    past = None
    if used is not None and buffers[0] is not None:  # the caches are buffers that are longer than what they hold
        past = int(used.reshape(-1)[0])
        operands[6:8] = [None if b is None else b[:, :, :past] for b in buffers]
    attention, given = as_attention(replace(op, inputs=tuple(n for n in op.inputs[:8])), operands)
    whole = Attention.of(attention, given)
    y, *rest = attention_forward(attention, given, whole, np.arange(whole.q.shape[3]))
    if past is not None:
        rest[:2] = [
            None if k is None or b is None else np.concatenate([k, b[:, :, k.shape[2] :]], axis=2)
            for k, b in zip(rest[:2], buffers, strict=False)
        ]
    return [None if y is None else merge_heads(y, 3), *rest]


def _decoder(op: Op, inputs: Operands) -> Results:
    """The same with its operands in another order; without a shared buffer the cache is as long as what it holds."""
    order = (0, 1, 2, 10, 3, 4, 5, 6, *((7,) if op.attributes.get("past_present_share_buffer", 0) else ()))
    names = (*op.inputs, *[""] * 11)
    return _multi_head(replace(op, inputs=tuple(names[i] for i in order)), [_at(inputs, i) for i in order])


def _projected(op: Op, inputs: Operands) -> Results | None:
    """Queries, keys and values are one product of the operand; past and present are keys and values stacked."""
    x, weight, bias, mask, past, scores, used = (*inputs, *[None] * 7)[:7]
    if x is None or weight is None or used is not None or op.attributes.get("do_rotary", 0):
        return None
    packed = x @ weight
    if bias is not None:
        packed += bias
    sizes = op.attributes.get("qkv_hidden_sizes") or (packed.shape[-1] // 3,) * 3
    parts: list[Array | None] = list(np.split(packed, np.cumsum(sizes)[:-1], axis=-1))
    batch, keys = x.shape[0], x.shape[1] + (0 if past is None else past.shape[3])
    if mask is not None and mask.ndim == 1 and len(mask) == 2 * batch:  # where keys end, and where they begin
        at = np.arange(keys)
        mask = ((at < mask[:batch, None]) & (at >= mask[batch:, None])).astype(np.int32)
    caches = [None, None] if past is None else [past[0], past[1]]
    wanted = ("y", "present_k", "present_v") if len(op.outputs) > 1 else ("y",)
    y, *rest = _multi_head(replace(op, outputs=wanted), [*parts, None, mask, scores, *caches])
    return [y, np.stack([np.asarray(r) for r in rest[:2]])] if rest else [y]


def _quantised_projected(op: Op, inputs: Operands) -> Results | None:
    x, weight, bias, x_scale, w_scale, mask, x_zero, w_zero, past = (*inputs, *[None] * 9)[:9]
    if x is None or weight is None or x_scale is None or w_scale is None:
        return None
    real = [dequantised(x, x_scale, x_zero), dequantised(weight, w_scale, w_zero)]
    return _projected(op, [*real, bias, mask, past])


def _grouped_query(op: Op, inputs: Operands) -> Results | None:
    """Query i of a sequence of which `past` tokens are cached sees the keys up to its own place past + i."""
    query, key, value, past_k, past_v, ends, total, cos, sin, positions, bias, sink = (*inputs, *[None] * 12)[:12]
    a = op.attributes
    if query is None or ends is None or total is None or any(x is not None for x in inputs[12:]):
        return None
    if a.get("sliding_window_cache", 0) or a.get("qk_output", 0):
        return None
    heads, key_heads = int(a["num_heads"]), int(a["kv_num_heads"])
    if key is None or value is None:
        depth = query.shape[-1] // (heads + 2 * key_heads)
        query, key, value = np.split(query, [heads * depth, (heads + key_heads) * depth], axis=-1)
    q, k, v = split_heads(query, heads), split_heads(key, key_heads), split_heads(value, key_heads)
    batch, _, steps, depth = q.shape
    longest = int(np.reshape(total, ()))
    held = ends.reshape(-1).astype(np.int64) + 1
    first = np.zeros_like(held) if longest == steps else held - steps
    places = first[:, None] + np.arange(steps)
    if a.get("do_rotary", 0) and cos is not None and sin is not None:
        at = places if positions is None else positions
        if positions is not None and longest == steps:  # of a first prompt only where the first sequence begins
            at = positions.reshape(-1)[0] + np.broadcast_to(np.arange(steps), (batch, steps))
        angles = cos[at], sin[at]
        interleaved = bool(a.get("rotary_interleaved", 0))
        q, k = (turned(x, angles[0], -angles[1], interleaved=interleaved) for x in (q, k))
    size = max(longest, 0 if past_k is None else past_k.shape[2])
    presents = [_cached(new, old, first, size) for new, old in ((k, past_k), (v, past_v))]
    scores = q.reshape(batch, key_heads, -1, steps, depth) @ np.swapaxes(presents[0][:, :, None], -1, -2)
    scores *= a.get("scale") or depth**-0.5
    scores = scores.reshape(batch, heads, steps, size)
    if cap := a.get("softcap", 0.0):
        scores = cap * np.tanh(scores / cap)
    if bias is not None:
        scores[..., : bias.shape[-1]] += bias
    at = np.arange(size)
    seen = at < held[:, None, None]
    if a.get("causal", 1):
        last = np.minimum(places + 1, held[:, None])[:, :, None]
        seen = at < last
        if (window := int(a.get("local_window_size", -1))) > 0:
            seen &= at >= last - window
    scores = np.where(seen[:, None], scores, -np.inf)
    y = _with_sink(scores, sink, smooth=bool(a.get("smooth_softmax", 0)))
    values = np.repeat(presents[1], heads // key_heads, axis=1)
    return [merge_heads(y @ values, 3), *presents]


def _cached(new: Array, old: Array | None, first: Array, size: int) -> Array:
    """The cache of `size` tokens with the new ones after the first ones of each sequence; zero beyond."""
    out = np.zeros((*new.shape[:2], size, new.shape[3]))
    for b, start in enumerate(first):
        if old is not None:
            out[b, :, :start] = old[b, :, :start]
        count = min(new.shape[2], size - int(start))
        out[b, :, start : start + count] = new[b, :, :count]
    return out


def _with_sink(scores: Array, sink: Array | None, *, smooth: bool) -> Array:
    """Softmax with one more score per head, which takes its share and gives nothing."""
    extra = None if sink is None and not smooth else np.zeros(1) if sink is None else sink
    highest = scores.max(axis=-1, keepdims=True)
    if extra is not None:
        highest = np.maximum(highest, extra.reshape(1, -1, 1, 1))
    base = np.where(np.isneginf(highest), 0.0, highest)
    p = np.exp(scores - base)
    whole = p.sum(axis=-1, keepdims=True)
    if extra is not None:
        whole = whole + np.exp(extra.reshape(1, -1, 1, 1) - base)
    return np.divide(p, whole, out=np.zeros_like(p), where=whole != 0)


def _rotary(op: Op, inputs: Operands) -> Results:
    x, cos, sin, positions = (*inputs, None)[:4]
    cos, sin = np.asarray(cos), np.asarray(sin)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    x = np.asarray(x)
    heads = split_heads(x, int(op.attributes.get("num_heads", 1)))
    y = turned(heads, cos, -sin, interleaved=bool(op.attributes.get("interleaved", 0)))
    return [merge_heads(y, x.ndim)]


def _rotary_microsoft(op: Op, inputs: Operands) -> Results:
    """Positions are stated one by one, or as that of the first element of the sequence."""
    x, positions, cos, sin = (np.asarray(v) for v in inputs)
    heads = split_heads(x, int(op.attributes.get("num_heads", 0)) or x.shape[-1] // (2 * cos.shape[-1]))
    at = positions if positions.ndim == 2 else positions.reshape(1, 1) + np.arange(heads.shape[2])
    y = turned(heads, cos[at], -sin[at], interleaved=bool(op.attributes.get("interleaved", 0)))
    return [merge_heads(y, x.ndim)]


def _linear_attention(op: Op, inputs: Operands) -> Results | None:
    if op.attributes.get("state_window", 0):
        return None
    here = Recurrence.of(op, inputs)
    past = _at(inputs, 3)
    y, states = here.run(here.zero() if past is None else past)
    return [merge_heads(y.reshape(y.shape[0], -1, *y.shape[3:]), 3), states[-1]]


def _gate(op: Op, inputs: Operands) -> Results:
    """(scale·softplus(a + bias), logistic(b))."""
    a, bias, scale = (np.asarray(x) for x in inputs[:3])
    rate = _at(inputs, 3)
    return [scale * np.logaddexp(0.0, a + bias), None if rate is None else logistic(rate)]


def _embed(op: Op, inputs: Operands) -> Results:
    """Sum of the embeddings of words, places and segments, normalised; how many words a mask leaves; the sum."""
    words, segments, of_words, of_places, of_segments, gain, shift, mask, places = (*inputs, *[None] * 9)[:9]
    at = np.asarray(words)
    total = np.asarray(of_words)[at] + np.asarray(of_places)[np.arange(at.shape[1])[None] if places is None else places]
    if segments is not None and of_segments is not None:
        total = total + of_segments[segments]
    axis = normalise_axis(-1, total.ndim)
    y = total - total.mean(axis=axis, keepdims=True)
    y /= np.sqrt(np.square(y).mean(axis=axis, keepdims=True) + op.attributes.get("epsilon", 1e-12))
    count = np.zeros(len(at), np.int32) if mask is None else mask.sum(axis=1, dtype=np.int32)
    return [y * gain + shift, count, total]


in_double(
    {
        "Attention": _attention,
        "LinearAttention": _linear_attention,
        "RotaryEmbedding": _rotary,
        "com.microsoft::Attention": _projected,
        "com.microsoft::DecoderMaskedMultiHeadAttention": _decoder,
        "com.microsoft::EmbedLayerNormalization": _embed,
        "com.microsoft::GroupQueryAttention": _grouped_query,
        "com.microsoft::LinearAttention": _linear_attention,
        "com.microsoft::LinearAttentionGate": _gate,
        "com.microsoft::MultiHeadAttention": _multi_head,
        "com.microsoft::QAttention": _quantised_projected,
        "com.microsoft::RotaryEmbedding": _rotary_microsoft,
    }
)
