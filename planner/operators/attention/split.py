"""Attention while queries stand in a whole sequence, and while keys are split: flash-decoding and ring attention."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.ir import Op
from planner.kernels.attributes import Array
from planner.kernels.shared import Call, numpy_call, shared
from planner.kernels.spmd import Collective, Coroutine, ShardContext, Sizes, all_gather, exchange
from planner.operators.attention.gradient import Attention, attention_backward, frontier, mask_gradient
from planner.operators.attention.masked import (
    Indices,
    attend,
    attend_back,
    constant,
    is_boolean,
    merge,
    merge_heads,
    merge_lse,
    split_heads,
    weighted,
)
from planner.operators.attention.rule import RING

__all__ = ["attention_backward_ranks", "attention_forward_ranks"]

Operands = Sequence["Array | None"]


@dataclass(frozen=True, slots=True)
class _Keys:
    """Some keys and their values; `positions` are their indices in the whole, `owner` the rank of the ring that
    holds them (−1: past keys, which do not travel)."""

    k: Any
    v: Any
    positions: Indices
    owner: int = -1


def attention_forward_ranks(op: Op, inputs: Operands, place: ShardContext) -> Coroutine:
    """Of operators that are attention with their operands arranged otherwise."""
    return (yield from _attention(numpy_call(op, inputs, place)))


def attention_backward_ranks(
    op: Op, inputs: Operands, outputs: Operands, gradients: Operands, wanted: Sequence[bool], place: ShardContext
) -> Coroutine:
    """The normalisers are computed again; a runtime would have kept them."""
    here = _bound(op, inputs, place)
    queries = _span(place, "s", here.q.shape[3])
    dy, *handed_on = _shared_out(gradients, place)
    if not _alone(place) and RING not in place.shards:
        return _only_wanted(attention_backward(op, inputs, [dy, *handed_on], wanted, here, queries), wanted, inputs)
    x, y = inputs[0], outputs[0]
    assert x is not None
    assert y is not None
    y, dy = (_like(here, op, g) for g in (y, np.zeros_like(y) if dy is None else dy))
    c = numpy_call(op, inputs, place)
    blocks = yield from _blocks(c, here)
    _, lse = _attended(c, here, blocks, queries)
    for factor in _alone(place):
        lse = merge_lse((yield from all_gather(lse, factor)))
    dq, dk, dv = np.zeros_like(here.q), np.zeros_like(here.k), np.zeros_like(here.v)
    past = None if here.past is None else [np.zeros_like(p) for p in here.past]
    mask = here.mask
    dmask = None if mask is None else np.zeros((*here.q.shape[:4], mask.shape[-1]), dtype=dq.dtype)
    home: list[Array | None] = [None] * place.shards.get(RING, 1)
    for block in blocks:
        bias = here.bias(queries, block.positions)
        found = attend_back(here.q, block.k, block.v, bias, here.scoring, lse, y, dy)
        dq += found.q
        if dmask is not None:
            inside = block.positions < dmask.shape[-1]
            dmask[..., block.positions[inside]] += found.biased[..., inside]
        if block.owner == -1:
            past = [found.k, found.v]
        elif block.owner == place.index.get(RING, 0):
            dk, dv = found.k, found.v
        else:
            home[block.owner] = np.concatenate([found.k, found.v], axis=-1).astype(x.dtype)
    if RING in place.shards:
        for piece in (yield from exchange(home, RING)):
            if piece is not None:
                dk, dv = dk + piece[..., : dk.shape[-1]], dv + piece[..., dk.shape[-1] :]
    dk, dv = (
        d if g is None else d + g.astype(d.dtype) for d, g in zip((dk, dv), (*handed_on, None, None), strict=False)
    )
    rank = x.ndim
    results = [
        merge_heads(dq.reshape(dq.shape[0], -1, *dq.shape[3:]), rank),
        merge_heads(dk, rank),
        merge_heads(dv, rank),
        None if dmask is None or mask is None else mask_gradient(dmask, mask.shape),
        *(past or (None, None)),
    ]
    return _only_wanted(results, wanted, inputs)


def _only_wanted(gradients: Operands, wanted: Sequence[bool], inputs: Operands) -> list[Array | None]:
    """The wanted ones, in the precision of the operands."""
    found = [*gradients, *[None] * len(inputs)]
    return [
        None if g is None or not w or x is None or x.dtype.kind in "iub" else g.astype(x.dtype)
        for g, w, x in zip(found, wanted, inputs, strict=False)
    ]


def _bound(op: Op, inputs: Sequence[Any], place: ShardContext) -> Attention:
    assert place.rule is not None
    factors = place.rule.factors
    return Attention.of(op, inputs, queries=factors["s"], past=factors.get("p", 0))


def _alone(place: ShardContext) -> list[str]:
    """Key factors that are split without the queries: new keys, past keys."""
    return [f for f in ("t", "p") if f in place.shards and not (f == "t" and RING in place.shards)]


def _span(place: ShardContext, factor: str, count: int) -> Indices:
    return np.arange(count) + place.offset.get(factor, 0)


def _attended(c: Call, here: Attention, blocks: Sequence[_Keys], queries: Indices) -> tuple[Any, Any]:
    """(output, lse) over the blocks; zeros and −∞ over none."""
    parts = [attend(here.q, b.k, b.v, here.bias(queries, b.positions), here.scoring) for b in blocks]
    if not parts:
        shape = here.q.shape[:4]
        return c.full((*shape, here.v.shape[-1]), 0, here.q), c.full(shape, -math.inf, here.q)
    return merge(parts)


def _blocks(c: Call, here: Attention) -> Generator[Collective, Any, list[_Keys]]:
    """The keys that this rank's queries attend to.  Past keys that all holders of new ones share are counted by the
    first of these, and new keys that all holders of past ones share likewise."""
    place = c.place
    alone = _alone(place)
    past = c.rule.factors.get("p", 0)
    if RING in place.shards:
        new = yield from _ring(c, here, past)
    else:
        new = [_Keys(here.k, here.v, _span(place, "t", here.k.shape[2]) + past, 0)]
    blocks = [] if "p" in alone and place.index["p"] else new
    if here.past is not None and not ("t" in alone and place.index["t"]):
        blocks = [_Keys(*here.past, _span(place, "p", here.past[0].shape[2])), *blocks]
    return blocks


def _ring(c: Call, here: Attention, before: int) -> Generator[Collective, Any, list[_Keys]]:
    """In each step every rank hands the keys and values that it holds to the next one."""
    me, ranks, xp = c.place.index[RING], c.place.shards[RING], c.xp
    count, depth, both = here.k.shape[2], here.k.shape[3], here.k.shape[3] + here.v.shape[3]
    held = c.like(xp.concat([here.k, here.v], axis=-1), 1)
    columns = [constant(np.arange(*ends), held) for ends in ((0, depth), (depth, both))]
    found = []
    for step in range(ranks):
        owner = (me - step) % ranks
        k, v = (xp.astype(xp.take(held, part, axis=-1), here.q.dtype) for part in columns)
        found.append(_Keys(k, v, np.arange(count) + owner * count + before, owner))
        if step + 1 < ranks:
            pieces = [held if j == (me + 1) % ranks else None for j in range(ranks)]
            arriving = tuple(count if j == (me - 1) % ranks else 0 for j in range(ranks))
            received = yield from exchange(pieces, RING, sizes=Sizes(held, 2, arriving))
            held = received[(me - 1) % ranks]
    return found


def _like(here: Attention, op: Op, y: Array) -> Array:
    """[b, h, g, s, f], in the precision of the scores."""
    return split_heads(y, op.attributes.get("q_num_heads", 1)).reshape(*here.q.shape[:4], -1).astype(here.q.dtype)


def _shared_out(gradients: Operands, place: ShardContext) -> list[Array | None]:
    """Keys handed on are the same on all ranks that split queries or groups: each takes its part of their gradient,
    for that of K and V is a pending sum there."""
    ranks = _holders(place)
    shared = [None if g is None else (g / ranks).astype(g.dtype) for g in gradients[1:3]]
    return [*gradients[:1], *shared, *gradients[3:]]


def _holders(place: ShardContext) -> int:
    """How many ranks hold the same keys."""
    return place.shards.get("s", 1) // place.shards.get(RING, 1) * place.shards.get("g", 1)


@shared("Attention", "ai.onnx.preview::FlexAttention", backward=attention_backward_ranks)
def _attention(c: Call) -> Coroutine:
    if not _alone(c.place) and RING not in c.place.shards:
        return _of_all_keys(c)
    here = _bound(c.op, c.inputs, c.place)
    y, lse = _attended(c, here, (yield from _blocks(c, here)), _span(c.place, "s", here.q.shape[3]))
    for factor in _alone(c.place):
        whole = merge_lse((yield from c.gathered(lse, factor, terms=True)))
        y = c.xp.astype((yield from c.over(c.like(weighted(y, lse, whole)), [factor])), lse.dtype)
        lse = whole
    flat = c.xp.reshape(y, (y.shape[0], y.shape[1] * y.shape[2], *y.shape[3:]))
    results = [merge_heads(flat, c.operand().ndim), _handed_on(c, here.k), _handed_on(c, here.v)]
    return [c.like(r) if name else None for r, name in zip(results, c.op.outputs, strict=False)]


def _of_all_keys(c: Call) -> list[Any]:
    """The operator itself where a rank has all keys; which of them its queries see for their places in the whole is
    written out as a mask."""
    q, k, v, mask, past_k, _, valid = (*c.inputs, *[None] * 7)[:7]
    factors, xp = c.rule.factors, c.xp
    keys = k.shape[-2 if k.ndim == 4 else 1]
    offset: Any = 0
    if past_k is not None:
        offset, keys = factors.get("p", 0), keys + past_k.shape[2]
    elif valid is not None:
        offset = valid - factors["s"]
    short = mask is not None and (mask.shape[-1] > 1 or c.op.opset >= 24)  # what lies beyond it is hidden
    columns = mask.shape[-1] if short else keys
    queries = _span(c.place, "s", q.shape[-2 if q.ndim == 4 else 1])
    seen = frontier(c.op, offset, None).shows(queries, np.arange(columns), q)
    if seen is None:
        return _results(c, c.run(c.op, c.inputs))
    if mask is None:
        mask = seen
    elif is_boolean(mask):
        mask = mask & seen
    else:
        mask = xp.where(seen, mask, constant(np.array(-math.inf), mask, mask.dtype))
    placed = ("is_causal", "left_window_size", "right_window_size")
    plain = {n: value for n, value in c.op.attributes.items() if n not in placed}
    operands = (q, k, v, mask, *c.inputs[4:])
    names = tuple("" if x is None else f"operand {i}" for i, x in enumerate(operands))
    return _results(c, c.run(replace(c.op, inputs=names, attributes=plain), operands))


def _results(c: Call, found: Sequence[Any]) -> list[Any]:
    return [r if r is None or j not in (1, 2) else _handed_on(c, r) for j, r in enumerate(found)]


def _handed_on(c: Call, x: Any) -> Any:
    """Keys or values that all ranks hand on which split queries or groups: each passes its part of their gradient."""
    ranks = _holders(c.place)
    return c.with_gradient(c.still(x), x / ranks) if ranks > 1 else x
