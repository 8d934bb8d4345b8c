"""Scaled dot-product attention (ONNX 23 and later: grouped heads, masks, caches, soft cap) and rotary positions."""

from __future__ import annotations

import math

import numpy as np

from planner.verify.vjp.attributes import Array
from planner.verify.vjp.norm import softmax_gradient
from planner.verify.vjp.registry import Call, NoVjpError, register, unbroadcast

__all__: list[str] = []

Gradients = list["Array | None"]


@register("Attention")
def _attention(c: Call) -> Gradients:
    """With P = softmax(cap(s·Q Kᵀ) + mask) and Y = P V; the scores are computed again from Q and K."""
    _refuse_what_is_not_covered(c)
    q = _heads(c.operand(0), c.attr("q_num_heads"))
    new_k = _heads(c.operand(1), c.attr("kv_num_heads"))
    new_v = _heads(c.operand(2), c.attr("kv_num_heads"))
    mask, past_k, past_v = c.maybe(3), c.maybe(4), c.maybe(5)
    k = new_k if past_k is None else np.concatenate([past_k, new_k], axis=2)
    v = new_v if past_v is None else np.concatenate([past_v, new_v], axis=2)
    groups = q.shape[1] // k.shape[1]
    # One query head in [B, kv heads, queries per kv head, S, E] reads the key head of its group.
    q5 = q.reshape(q.shape[0], k.shape[1], groups, *q.shape[2:])
    k5, v5 = k[:, :, None], v[:, :, None]
    scale = c.attr("scale") or 1 / math.sqrt(q.shape[-1])
    scores = scale * (q5 @ np.swapaxes(k5, -1, -2))
    cap = c.attr("softcap", 0.0)
    capped = cap * np.tanh(scores / cap) if cap else scores
    bias = _bias(c, mask, q.shape[2], k.shape[2], 0 if past_k is None else past_k.shape[2])
    if bias is not None:
        capped = capped + _by_group(bias, k.shape[1], groups)
    p = _masked_softmax(capped)

    y = _heads(c.dy, c.attr("q_num_heads"))
    dy = y.reshape(*q5.shape[:-1], v.shape[-1])
    dv5 = np.swapaxes(p, -1, -2) @ dy
    dcapped = softmax_gradient(p, dy @ np.swapaxes(v5, -1, -2), -1)
    dmask = None
    if mask is not None and c.wants(3):
        dmask = _mask_gradient(dcapped, mask, q.shape[1])
    dscores = scale * (dcapped * (1 - np.tanh(scores / cap) ** 2) if cap else dcapped)
    dq = (dscores @ k5).reshape(q.shape)
    dk = (np.swapaxes(dscores, -1, -2) @ q5).sum(axis=2)
    dv = dv5.sum(axis=2)
    for j, total in ((1, dk), (2, dv)):
        present = c.gradients[j] if j < len(c.gradients) else None
        if present is not None:
            total += present
    old = 0 if past_k is None else past_k.shape[2]
    return [
        _like(dq, c.operand(0)),
        _like(dk[:, :, old:], c.operand(1)),
        _like(dv[:, :, old:], c.operand(2)),
        dmask,
        None if past_k is None else dk[:, :, :old],
        None if past_v is None else dv[:, :, :old],
    ]


def _refuse_what_is_not_covered(c: Call) -> None:
    windows = max(c.attr("left_window_size", -1), c.attr("right_window_size", -1))
    scores = c.gradients[3] if len(c.gradients) > 3 else None
    if c.maybe(6) is not None or windows >= 0 or scores is not None:
        raise NoVjpError(
            f"operator {c.op.name} (Attention): padded caches, sliding windows and gradients of the score output "
            "have no vector-Jacobian product"
        )


def _heads(x: Array, heads: int | None) -> Array:
    """[B, S, H·E] → [B, H, S, E]; four dimensions pass."""
    if x.ndim == 4:
        return x
    return x.reshape(*x.shape[:2], heads or 1, -1).transpose(0, 2, 1, 3)


def _like(g: Array, x: Array) -> Array:
    return g if x.ndim == 4 else g.transpose(0, 2, 1, 3).reshape(x.shape)


def _bias(c: Call, mask: Array | None, queries: int, keys: int, past: int) -> Array | None:
    bias: Array | None = None
    if mask is not None:
        bias = np.where(mask, 0.0, -np.inf).astype(c.x.dtype) if mask.dtype == np.bool_ else mask
        short = keys - bias.shape[-1]
        if short > 0:
            bias = np.pad(bias, [(0, 0)] * (bias.ndim - 1) + [(0, short)], constant_values=-np.inf)
    if c.attr("is_causal", 0):
        allowed = np.arange(keys) <= np.arange(queries)[:, None] + past
        causal = np.where(allowed, 0.0, -np.inf).astype(c.x.dtype)
        bias = causal if bias is None else bias + causal
    return bias


def _by_group(bias: Array, kv_heads: int, groups: int) -> Array:
    """A bias that broadcasts to [B, heads, S, T], for scores [B, kv heads, group, S, T]."""
    if bias.ndim < 3:
        return bias
    if bias.shape[-3] == 1:
        return np.expand_dims(bias, -3)
    return bias.reshape(*bias.shape[:-3], kv_heads, groups, *bias.shape[-2:])


def _masked_softmax(scores: Array) -> Array:
    """Rows without any key give zeros, as the operator defines."""
    highest = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(highest), 0, highest))
    total = e.sum(axis=-1, keepdims=True)
    return np.asarray(e / np.where(total == 0, 1, total))


def _mask_gradient(g: Array, mask: Array, heads: int) -> Array:
    whole = g.reshape(g.shape[0], heads, *g.shape[3:])[..., : mask.shape[-1]]
    return unbroadcast(whole, mask.shape)


@register("RotaryEmbedding")
def _rotary_embedding(c: Call) -> Gradients:
    """A rotation of pairs of features: its transpose turns the other way."""
    dy = _heads(c.dy, c.attr("num_heads"))
    cos, sin, positions = c.operand(1), c.operand(2), c.maybe(3)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    pairs = [slice(0, 2 * half, 2), slice(1, 2 * half, 2)] if c.attr("interleaved", 0) else None
    first, second = pairs or [slice(0, half), slice(half, 2 * half)]
    dx = dy.copy()
    dx[..., first] = cos * dy[..., first] + sin * dy[..., second]
    dx[..., second] = cos * dy[..., second] - sin * dy[..., first]
    return [_like(dx, c.operand(0))]
