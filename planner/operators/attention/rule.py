"""Attention: batch, key heads `h`, query heads per key head `g`, queries `s` and keys `t`.

Long sequences are divided in three ways (context parallelism):

- queries alone, every rank holding all keys (they are gathered beforehand, a redistribution like any other);
- keys alone (flash-decoding): every rank attends to its keys, and the outputs are summed, weighted by the normalisers;
- both at once, mode `s&t`: every rank holds its queries and its keys, and keys with values travel around a ring
  (Liu et al. 2023, Ring Attention with Blockwise Transformers); in the backward they travel again, and their
  gradients with them.
"""

from __future__ import annotations

from planner.ir.tensor import ITEM_BYTES
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["RING", "key_collectives", "ring_collectives"]

RING = "s&t"


def key_collectives(factor: str, value_depth: int, item_bytes: int) -> tuple[InnerCollective, ...]:
    """Keys split alone: normalisers are gathered, weighted outputs summed; the backward needs the normalisers."""
    rows = ("b", "h", "g", "s")
    statistic = max(4, item_bytes)
    return (
        InnerCollective(factor, "all_gather", rows, statistic, statistic=True),
        InnerCollective(factor, "all_reduce", rows, value_depth * item_bytes),
        InnerCollective(factor, "all_gather", rows, statistic, backward=True, statistic=True),
    )


def ring_collectives(depth: int, value_depth: int, item_bytes: int) -> tuple[InnerCollective, ...]:
    """Keys and values pass by all queries; so do their gradients, on the way back."""
    pair = (depth + value_depth) * item_bytes
    keys = ("b", "h", "t")
    return (
        InnerCollective(RING, "permute", keys, pair, ring=True),
        InnerCollective(RING, "permute", keys, pair, backward=True, count=2, ring=True),
    )


@rule("Attention")
def _attention(o: Operator) -> Rule:
    """ONNX Attention, versions 23 on: operands Q, K, V, mask, past keys, past values, valid lengths.

    Three-dimensional operands hold the heads in their last dimension, (h g d) with d minor.  With
    grouped queries, query head (h, g) reads key head h: g may be split once h is split down to one.  The
    depth of the values stays whole: splitting it would repeat the scores, half of the work, on every rank.

    The mask's keys stay whole, for a ring needs the columns of all keys on every rank.  Keys handed on behind
    past ones, and scores handed out, keep the keys whole: putting them together would gather all.  So does a mask
    with one column, which means all keys in version 23 and the first one later.
    """
    flat = o.rank(0) == 3
    if flat:
        heads, key_heads = int(o.attribute("q_num_heads", 0)), int(o.attribute("kv_num_heads", 0))
        if not heads or not key_heads:
            raise KeepWholeError("three-dimensional operands without q_num_heads and kv_num_heads")
        depth, value_depth = o.shape(0)[2] // heads, o.shape(2)[2] // key_heads
        queries, keys = o.shape(0)[1], o.shape(1)[1]
    else:
        heads, key_heads = o.shape(0)[1], o.shape(1)[1]
        depth, value_depth = o.shape(0)[3], o.shape(2)[3]
        queries, keys = o.shape(0)[2], o.shape(1)[2]
    if heads % key_heads:
        raise KeepWholeError(f"{heads} query heads are no multiple of {key_heads} key heads")
    total = keys + (o.shape(4)[2] if o.has(4) else 0)
    present, scores = o.yields(1) or o.yields(2), o.yields(3)
    whole_keys = scores or (present and o.has(4)) or (o.has(3) and total > 1 and o.shape(3)[-1] == 1)

    q, k, v, y = (
        ("b s (h g e!)", "b t (h e!)", "b t (h f!)", "b s (h g f!)")
        if flat
        else ("b (h g) s e!", "b h t e!", "b h t f!", "b (h g) s f!")
    )
    mask = " ".join(["b", "(h g)", "s", "*"][4 - o.rank(3) :]) if o.has(3) else "-"
    positions = "*" if o.has(4) else "t"
    # Where queries stand decides what they see; what is handed on besides Y lacks queries and groups.
    placed = (
        o.attribute("is_causal", 0) or max(o.attribute(f"{side}_window_size", -1) for side in ("left", "right")) >= 0
    )
    item_bytes = ITEM_BYTES.get(o.input_types[0], 4)
    flops = 2.0 * o.shape(0)[0] * heads * queries * total * (depth + value_depth)
    return sharded(
        o,
        f"{q}, {k}, {v}, {mask}, b h p e!, b h p f!, b -> {y}, b h {positions} e!, b h {positions} f!, b (h g) s *",
        kind="attention",
        sizes={"h": key_heads, "g": heads // key_heads, "e": depth, "f": value_depth},
        whole=["t", "p"] if whole_keys else [],
        combine=dict.fromkeys(("s", "g", "t", "p"), Combine.INNER),
        linear=[(2, 5)] if not present and not scores else [],
        differentiable=(0, 1, 2, 3, 4, 5),
        saved=(0, 1, 2, 3, 4, 5),
        saved_results=(0,),
        flops=flops,
        # Scores are computed again, then four products of the same size (FlashAttention, Dao et al. 2022).
        backward_flops=2.5 * flops,
        counts={"q_num_heads": ("h", "g"), "kv_num_heads": ("h",)} if flat else None,
        inner=()
        if whole_keys
        else (
            *key_collectives("t", value_depth, item_bytes),
            *key_collectives("p", value_depth, item_bytes),
            *ring_collectives(depth, value_depth, item_bytes),
        ),
        modes=None if whole_keys else {RING: ("s", "t")},
        aware=[*(["s"] if placed or present else []), *(["g"] if present else [])],
    )
