"""Attention as one operator."""

from __future__ import annotations

import math

import torch

from planner.errors import InputError
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


@aten("scaled_dot_product_attention.default")
def _attention(
    w: Writer, q: Value, k: Value, v: Value, mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """ONNX Attention (version 23); operands of rank 3 get a head."""
    if dropout_p:
        raise InputError(
            f"{w.path or 'the module'}: dropout of attention scores (p={dropout_p:g}) cannot be planned for; "
            "set its probability to 0"
        )
    given = q.rank
    if given == 3:
        q, k, v = (w.op("Unsqueeze", x, w.integers([1]), shape=(x.shape[0], 1, *x.shape[1:])) for x in (q, k, v))
    if q.rank != 4:
        raise InputError(f"{w.path or 'the module'}: attention of operands of rank {given}; expected 3 or 4")
    if mask is not None and _is_causal(mask, q.shape[2], k.shape[2]):
        mask, is_causal = None, True
    if mask is not None:
        mask = w.broadcast(mask)
        if mask.rank > 2 and given == 3:
            mask = w.op("Unsqueeze", mask, w.integers([1]), shape=(mask.shape[0], 1, *mask.shape[1:]))
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    shape = (*q.shape[:3], v.shape[3])
    y = w.op("Attention", q, k, v, mask, shape=shape, is_causal=int(is_causal), scale=scale)
    return y if given == 4 else w.op("Squeeze", y, w.integers([1]), shape=(y.shape[0], *y.shape[2:]))


def _is_causal(mask: Value, queries: int, keys: int) -> bool:
    """Whether the mask is known, the same for all heads and samples, and lets every query see what is before it."""
    if mask.held is None or queries != keys or mask.shape[-2:] != (queries, keys):
        return False
    held = mask.held.reshape(mask.held.shape[-2:]) if mask.held.numel() == queries * keys else None
    if held is None:
        return False
    seen = held if held.dtype == torch.bool else held == 0
    hidden = ~held if held.dtype == torch.bool else held <= torch.finfo(held.dtype).min
    below = torch.ones(queries, keys, dtype=torch.bool).tril()
    return bool((seen == below).all()) and bool((hidden == ~below).all())
