"""Scaled dot-product attention (ONNX 23 and later: grouped heads, masks, caches, windows, soft cap)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, NoVjpError, register, unbroadcast
from planner.kernels.namespaces import array_namespace
from planner.kernels.shared import is_narrow
from planner.operators.attention.masked import (
    Frontier,
    Indices,
    Scoring,
    attend,
    attend_back,
    by_group,
    constant,
    hiding,
    is_boolean,
    merge_heads,
    probabilities,
    split_heads,
)

__all__ = ["Attention", "attention_backward", "attention_forward", "frontier", "mask_gradient"]

Operands = Sequence["Array | None"]
Gradients = list["Array | None"]


@dataclass(frozen=True, slots=True)
class Attention:
    """The operands of ONNX Attention, heads apart, half precision widened.

    Bias and frontier speak of the whole: queries and keys are named by their indices there.
    """

    q: Any  # b h g s e
    k: Any  # b h t e, the new keys alone
    v: Any
    past: tuple[Any, Any] | None
    mask: Any
    scoring: Scoring
    frontier: Frontier

    @classmethod
    def of(cls, op: Op, inputs: Sequence[Any], *, queries: int | None = None, past: int | None = None) -> Attention:
        """`queries` and `past` are the whole operator's numbers of queries and of past keys, where these are parts."""
        given = [None if x is None else _wide(x) for x in (*inputs, *[None] * (7 - len(inputs)))]
        q, k, v, mask, past_k, past_v, valid = given
        assert q is not None
        assert k is not None
        assert v is not None
        q = split_heads(q, op.attributes.get("q_num_heads", 1))
        k, v = (split_heads(x, op.attributes.get("kv_num_heads", 1)) for x in (k, v))
        xp = array_namespace(q)
        grouped = xp.reshape(q, (q.shape[0], k.shape[1], q.shape[1] // k.shape[1], *q.shape[2:]))
        cached = None if past_k is None or past_v is None else (past_k, past_v)
        if mask is not None and mask.shape[-1] == 1 and op.opset < 24:  # short masks are padded from then on
            keys = k.shape[2] + (0 if past_k is None else past_k.shape[2])
            mask = xp.broadcast_to(mask, (*mask.shape[:-1], keys))
        offset: Any = 0
        if past_k is not None:
            offset = past_k.shape[2] if past is None else past
        elif valid is not None:
            offset = valid - (q.shape[2] if queries is None else queries)
        attributes = op.attributes
        scoring = Scoring(
            float(attributes.get("scale") or 1 / math.sqrt(q.shape[-1])), float(attributes.get("softcap", 0.0))
        )
        return cls(grouped, k, v, cached, mask, scoring, frontier(op, offset, valid))

    @property
    def heads(self) -> tuple[int, int]:
        return self.q.shape[1], self.q.shape[2]

    def bias(self, queries: Indices, keys: Indices) -> Any:
        """What is added to the scores of these queries, whose part of the mask is here, and of these keys."""
        hidden = self.frontier.hides(queries, keys, self.q)
        if self.mask is None:
            return hidden
        mask, xp = self.mask, array_namespace(self.q)
        if is_boolean(mask):
            mask = hiding(mask, self.q)
        columns = xp.take(mask, constant(np.minimum(keys, mask.shape[-1] - 1), mask), axis=-1)
        short = keys >= mask.shape[-1]
        if short.any():  # keys beyond a short mask are hidden
            columns = xp.where(constant(short, mask), constant(np.array(-math.inf), mask, mask.dtype), columns)
        bias = by_group(columns, *self.heads)
        return bias if hidden is None else bias + hidden


def frontier(op: Op, offset: Any, valid: Any) -> Frontier:
    """What the operator's attributes say of the keys that a query sees; a causal one sees none behind its own."""
    a = op.attributes
    right = 0 if a.get("is_causal", 0) else a.get("right_window_size", -1)
    return Frontier(offset, valid, a.get("left_window_size", -1), right)


def attention_forward(op: Op, inputs: Operands, place: Attention, queries: Indices) -> list[Array | None]:
    """All four results for `queries` over all keys, in the precision of the operands."""
    k, v = _with_past(place)
    keys = np.arange(k.shape[2])
    bias = place.bias(queries, keys)
    y, lse = attend(place.q, k, v, bias, place.scoring)
    x = inputs[0]
    assert x is not None
    results: list[Array | None] = [_merged(y, x.ndim), k, v]
    if len(op.outputs) > 3 and op.outputs[3]:
        shown = place.scoring.raw(place.q, k)
        mode = op.attributes.get("qk_matmul_output_mode", 0)
        if mode >= 1:
            shown = place.scoring.capped(shown)
        if mode >= 2 and bias is not None:
            shown = shown + bias
        if mode == 3:
            shown = probabilities(shown, lse)
        results.append(shown.reshape(shown.shape[0], -1, *shown.shape[3:]))
    return [None if r is None else r.astype(x.dtype) for r in results[: len(op.outputs)]]


def attention_backward(
    op: Op, inputs: Operands, gradients: Operands, wanted: Sequence[bool], place: Attention, queries: Indices
) -> Gradients:
    """Gradients of all operands; the scores are computed again from Q and K."""
    k, v = _with_past(place)
    keys = np.arange(k.shape[2])
    bias = place.bias(queries, keys)
    y, lse = attend(place.q, k, v, bias, place.scoring)
    dy, present_k, present_v, shown = (*(None if g is None else _wide(g) for g in gradients), None, None, None)[:4]
    split = np.zeros_like(y) if dy is None else split_heads(dy, op.attributes.get("q_num_heads", 1)).reshape(y.shape)
    handed_out = None
    if shown is not None:
        scores = shown.reshape(*place.q.shape[:4], len(keys))
        handed_out = op.attributes.get("qk_matmul_output_mode", 0), scores
    found = attend_back(place.q, k, v, bias, place.scoring, lse, y, split, handed_out)
    dk = found.k if present_k is None else found.k + present_k
    dv = found.v if present_v is None else found.v + present_v
    old = 0 if place.past is None else place.past[0].shape[2]
    ranks = [0 if x is None else x.ndim for x in inputs]
    dmask = None
    if place.mask is not None and len(wanted) > 3 and wanted[3]:
        dmask = mask_gradient(found.biased, place.mask.shape)
        if inputs[3] is not None:
            dmask = unbroadcast(dmask, inputs[3].shape)
    return [
        _merged(found.q, ranks[0]),
        merge_heads(dk[:, :, old:], ranks[1]),
        merge_heads(dv[:, :, old:], ranks[2]),
        dmask,
        dk[:, :, :old] if old else None,
        dv[:, :, :old] if old else None,
    ]


@register("Attention")
def _attention(c: Call) -> Gradients:
    whole = Attention.of(c.op, c.inputs)
    return attention_backward(c.op, c.inputs, c.gradients, c.wanted, whole, np.arange(whole.q.shape[3]))


@register("ai.onnx.preview::FlexAttention")
def _flex_attention(c: Call) -> Gradients:
    if any(name in c.op.attributes for name in ("score_mod", "prob_mod")):
        raise NoVjpError(f"operator {c.op.name} (FlexAttention): graphs that change scores have no product")
    whole = Attention.of(c.op, c.inputs)
    return attention_backward(c.op, c.inputs, c.gradients, c.wanted, whole, np.arange(whole.q.shape[3]))


def mask_gradient(biased: Array, shape: tuple[int, ...]) -> Array:
    """Gradient of a mask of `shape` from that of the scores [b, h, g, s, t] with it."""
    whole = biased.reshape(biased.shape[0], -1, *biased.shape[3:])[..., : shape[-1]]
    return unbroadcast(whole, shape)


def _with_past(place: Attention) -> tuple[Array, Array]:
    if place.past is None:
        return place.k, place.v
    k, v = (np.concatenate([old, new], axis=2) for old, new in zip(place.past, (place.k, place.v), strict=True))
    return k, v


def _merged(x: Array, rank: int) -> Array:
    """[b, h, g, s, f] → [b, (h g), s, f] or [b, s, (h g f)]."""
    return merge_heads(x.reshape(x.shape[0], -1, *x.shape[3:]), rank)


def _wide(x: Any) -> Any:
    xp = array_namespace(x)
    return xp.astype(x, xp.float32) if is_narrow(x.dtype) else x
