"""Rotary positions: pairs of elements turned by an angle of their position."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.operators.attention.masked import merge_heads, split_heads
from planner.runtime.registry import Call, operator

__all__: list[str] = []


def _turned(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """The first elements of [b, h, s, e], as many as have angles [b, s, ·]."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-3).to(x.dtype), sin.unsqueeze(-3).to(x.dtype)
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        a, b = part[..., ::2], part[..., 1::2]
        found = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    else:
        a, b = part[..., :half], part[..., half:]
        found = torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
    return torch.cat([found, rest], -1) if rest.shape[-1] else found


@operator("RotaryEmbedding")
def _rotary(c: Call) -> Tensor:
    """X, cosines, sines, and the position of every token where the angles are of all positions."""
    cos, sin, positions = c.operand(1), c.operand(2), c.maybe(3)
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    heads = split_heads(c.x, int(c.attr("num_heads", 0)) or 1)
    y: Tensor = merge_heads(_turned(heads, cos, sin, interleaved=bool(c.attr("interleaved", 0))), c.x.ndim)
    return y


@operator("com.microsoft::RotaryEmbedding", aware=True)
def _rotary_microsoft(c: Call) -> Tensor | None:
    """Positions are stated one by one, or as that of the first element of the sequence."""
    positions, cos, sin = c.operand(1), c.operand(2), c.operand(3)
    heads = split_heads(c.x, int(c.attr("num_heads", 0)) or c.x.shape[-1] // (2 * cos.shape[-1]))
    if positions.ndim != 2:
        first = positions.reshape(1, 1) + c.place.offset.get("s", 0)
        positions = first + torch.arange(heads.shape[2], device=positions.device)
    found = _turned(heads, cos[positions], sin[positions], interleaved=bool(c.attr("interleaved", 0)))
    y: Tensor = merge_heads(found, c.x.ndim)
    return y
