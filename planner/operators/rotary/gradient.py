"""Rotary positions: a rotation of pairs of features, whose transpose turns the other way."""

from __future__ import annotations

import numpy as np

from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register
from planner.operators.attention.masked import merge_heads, split_heads

__all__ = ["turned"]


def turned(dy: Array, cos: Array, sin: Array, *, interleaved: bool) -> Array:
    """`dy` is (b, h, s, e); the angles of the first features broadcast to (b, s, half)."""
    half = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    pairs = [slice(0, 2 * half, 2), slice(1, 2 * half, 2)] if interleaved else None
    first, second = pairs or [slice(0, half), slice(half, 2 * half)]
    dx = dy.copy()
    dx[..., first] = cos * dy[..., first] + sin * dy[..., second]
    dx[..., second] = cos * dy[..., second] - sin * dy[..., first]
    return dx


@register("RotaryEmbedding")
def _rotary_embedding(c: Call) -> list[Array | None]:
    cos, sin, positions = c.operand(1), c.operand(2), c.maybe(3)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    dy = split_heads(c.dy, c.attr("num_heads", 1))
    dx = turned(dy, cos, sin, interleaved=bool(c.attr("interleaved", 0)))
    return [merge_heads(dx, c.x.ndim)]


@register("com.microsoft::RotaryEmbedding")
def _rotary_embedding_microsoft(c: Call) -> list[Array | None]:
    """Positions are stated one by one, or as that of the first element of the sequence."""
    positions, cos, sin = c.operand(1), c.operand(2), c.operand(3)
    # Without a rotary dimension the tables span a whole head.
    heads = c.attr("num_heads", 0) or c.x.shape[-1] // (2 * cos.shape[-1])
    dy = split_heads(c.dy, heads)
    at = positions if positions.ndim == 2 else positions.reshape(1, 1) + np.arange(dy.shape[2])
    dx = turned(dy, cos[at], sin[at], interleaved=bool(c.attr("interleaved", 0)))
    return [merge_heads(dx, c.x.ndim)]
