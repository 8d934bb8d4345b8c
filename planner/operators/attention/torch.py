"""Attention with all keys of its queries; where keys are split, its kernel runs (`split.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from planner.operators.attention.gradient import Attention
from planner.operators.attention.masked import attend, by_group, merge_heads, probabilities, split_heads
from planner.runtime.registry import Call, operator

__all__: list[str] = []

_SHORT_MASKS = 24  # operator set since which a mask may be shorter than the keys, which are hidden beyond it


@operator("Attention", "ai.onnx.preview::FlexAttention")
def _attention(c: Call) -> Sequence[Tensor | None] | None:
    """torch's own, unless scores are capped or handed out, or graphs change them."""
    if any(name in c.op.attributes for name in ("score_mod", "prob_mod")):
        return None
    q = split_heads(c.x, c.attr("q_num_heads", 1))
    k, v = (split_heads(c.operand(i), c.attr("kv_num_heads", 1)) for i in (1, 2))
    past_k, past_v = c.maybe(4), c.maybe(5)
    if past_k is not None and past_v is not None:
        k, v = torch.cat([past_k, k], 2), torch.cat([past_v, v], 2)
    scores: Tensor | None = None
    if c.attr("softcap", 0.0) or c.yields(3):
        y, scores = _scored(c, q, k, v)
    else:
        y = _scaled_product(c, q, k, v)
    return [merge_heads(y, c.x.ndim), k, v, scores][: len(c.op.outputs)]


def _scaled_product(c: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of a first prompt needs no mask."""
    sides = [int(c.attr(f"{side}_window_size", -1)) for side in ("left", "right")]
    causal = bool(c.attr("is_causal", 0))
    plain = c.maybe(3) is None and c.maybe(4) is None and c.maybe(6) is None and max(sides) < 0
    mask = None if plain else _mask(c, q, k.shape[2])
    scale = c.attr("scale")
    return functional.scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        is_causal=causal and plain,
        scale=float(scale) if scale else None,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _mask(c: Call, q: Tensor, keys: int) -> Tensor | None:
    """What the operand hides and what the places of queries and keys hide, together."""
    seen, mask = _shown(c, q, keys), c.maybe(3)
    if mask is None:
        return seen
    mask = mask[None] if mask.ndim == 1 else mask
    short = keys - mask.shape[-1]
    if short and mask.shape[-1] == 1 and c.op.opset < _SHORT_MASKS:
        mask = mask.expand(*mask.shape[:-1], keys)
    elif short:
        mask = functional.pad(mask, (0, short), value=False if mask.dtype == torch.bool else -torch.inf)
    if mask.dtype == torch.bool:
        return mask if seen is None else mask & seen
    return mask.to(q.dtype) if seen is None else torch.where(seen, mask, -torch.inf).to(q.dtype)


def _shown(c: Call, q: Tensor, keys: int) -> Tensor | None:
    """Whether a query sees a key for their places, and for how many keys there are."""
    past, valid = c.maybe(4), c.maybe(6)
    left = int(c.attr("left_window_size", -1))
    right = 0 if c.attr("is_causal", 0) else int(c.attr("right_window_size", -1))
    if valid is None and left < 0 and right < 0:
        return None
    at = torch.arange(keys, device=q.device)
    query = torch.arange(q.shape[2], device=q.device)[:, None]
    if past is not None:
        query = query + past.shape[2]
    elif valid is not None:
        query = query + (valid - q.shape[2]).reshape(-1, 1, 1, 1)
    seen = torch.ones((), dtype=torch.bool, device=q.device)
    if left >= 0:
        seen = seen & (at >= query - left)
    if right >= 0:
        seen = seen & (at <= query + right)
    if valid is not None:
        seen = seen & (at < valid.reshape(-1, 1, 1, 1))
    return seen


def _scored(c: Call, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
    """Scores are bent by a hyperbolic tangent before they are masked, and handed out on request: raw (0), bent (1),
    masked (2) or as probabilities (3)."""
    here = Attention.of(c.op, c.inputs)
    b, h, g, s, _ = here.q.shape
    k, v = k.to(here.q.dtype), v.to(here.q.dtype)
    mask = _mask(c, here.q.reshape(b, h * g, s, -1), k.shape[2])
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=here.q.dtype).masked_fill(~mask, -torch.inf)
    bias = None if mask is None else by_group(mask, h, g)
    y, lse = attend(here.q, k, v, bias, here.scoring)
    shown: Tensor | None = None
    if c.yields(3):
        mode = int(c.attr("qk_matmul_output_mode", 0))
        shown = here.scoring.raw(here.q, k)
        shown = here.scoring.capped(shown) if mode >= 1 else shown
        shown = shown + bias if mode >= 2 and bias is not None else shown
        shown = probabilities(shown, lse) if mode == 3 else shown
        shown = shown.reshape(b, h * g, s, -1).to(c.x.dtype)
    return y.reshape(b, h * g, s, -1).to(c.x.dtype), shown
