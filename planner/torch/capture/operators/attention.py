"""Attention as one operator."""

from __future__ import annotations

import math

import torch

from planner.torch.capture.operators.elementwise import dropped
from planner.torch.capture.registry import aten
from planner.torch.capture.writer import Value, Writer

__all__: list[str] = []


@aten("scaled_dot_product_attention.default")
def _attention(
    w: Writer, q: Value, k: Value, v: Value, mask: Value | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Value:  # fmt: skip
    """ONNX Attention (version 23), where no scores are dropped; operands of rank 3 get a head."""
    fronts = q.shape[:-2], k.shape[:-2], v.shape[:-2]
    if len(set(fronts)) > 1 and not enable_gqa:
        wide = tuple(torch.broadcast_shapes(*fronts))
        q, k, v = (_wide(w, x, wide) for x in (q, k, v))
    given = q.shape[:-2]
    if q.rank != 4:
        if mask is not None and mask.rank > 2:
            mask = _in_four(w, _wide(w, mask, given))
        q, k, v = (_in_four(w, x) for x in (q, k, v))
    if mask is not None and _is_causal(mask, q.shape[2], k.shape[2]):
        mask, is_causal = None, True
    mask = None if mask is None else w.broadcast(mask)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    shape = (*q.shape[:3], v.shape[3])
    if dropout_p:
        y = _in_steps(w, q, k, v, mask, dropout_p, scale, is_causal)
    else:
        y = w.op("Attention", q, k, v, mask, shape=shape, is_causal=int(is_causal), scale=scale)
    if len(given) == 2:
        return y
    if len(given) == 1:
        return w.op("Squeeze", y, w.integers([1]), shape=(y.shape[0], *y.shape[2:]))
    whole = (*given, *y.shape[2:])
    return w.op("Reshape", y, w.integers(whole), shape=whole)


def _in_four(w: Writer, x: Value) -> Value:
    """With one dimension of samples and one of heads."""
    if x.rank == 3:
        return w.op("Unsqueeze", x, w.integers([1]), shape=(x.shape[0], 1, *x.shape[1:]))
    shape = (math.prod(x.shape[:-3]), *(x.shape[-3:] if x.rank > 2 else (1, *x.shape)))
    return w.op("Reshape", x, w.integers(shape), shape=shape)


def _wide(w: Writer, mask: Value, front: tuple[int, ...]) -> Value:
    """A matrix, as a mask, for each of the samples and heads."""
    shape = (*front, *mask.shape[-2:])
    if mask.shape == shape:
        return mask
    if mask.held is not None:
        return Value("", shape, mask.dtype, mask.held.reshape(*(1,) * (len(shape) - mask.rank), *mask.held.shape))
    return w.op("Expand", mask, w.integers(shape), shape=shape)


def _in_steps(
    w: Writer, q: Value, k: Value, v: Value, mask: Value | None, share: float, scale: float, is_causal: bool
) -> Value:
    """Operator by operator, with a share of the scores dropped, which ONNX's Attention does not do."""
    k, v = (_for_heads(w, x, q.shape[1]) for x in (k, v))
    swapped = (*k.shape[:2], k.shape[3], k.shape[2])
    keys = w.op("Transpose", k, shape=swapped, perm=[0, 1, 3, 2])
    size = (*q.shape[:3], k.shape[2])
    scores = w.op("Mul", w.op("MatMul", q, keys, shape=size), w.scalar(scale, q.dtype), shape=size)
    if is_causal:
        seen = torch.ones(size[2:], dtype=torch.bool).tril()
        mask = Value(w.constant(seen), tuple(seen.shape), torch.bool, seen)
    if mask is not None and mask.dtype == torch.bool:
        scores = w.op("Where", mask, scores, w.scalar(torch.finfo(q.dtype).min, q.dtype), shape=size, dtype=q.dtype)
    elif mask is not None:
        scores = w.op("Add", scores, w.cast(mask, q.dtype), shape=size)
    weights = w.op("Softmax", scores, shape=size, axis=-1)
    if mask is not None and mask.dtype == torch.bool and not is_causal:  # a query that sees nothing gets nothing
        weights = w.op("Where", mask, weights, w.scalar(0.0, q.dtype), shape=size, dtype=q.dtype)
    return w.op("MatMul", dropped(w, weights, share), v, shape=(*q.shape[:3], v.shape[3]))


def _for_heads(w: Writer, x: Value, heads: int) -> Value:
    """Keys or values, once for each of the query heads that share them."""
    batch, own, length, depth = x.shape
    if own == heads:
        return x
    apart = w.op("Unsqueeze", x, w.integers([2]), shape=(batch, own, 1, length, depth))
    wide = (batch, own, heads // own, length, depth)
    each = w.op("Expand", apart, w.integers(wide), shape=wide)
    return w.op("Reshape", each, w.integers((batch, heads, length, depth)), shape=(batch, heads, length, depth))


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
