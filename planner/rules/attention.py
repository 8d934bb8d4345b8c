"""Attention: batch, key heads `h`, query heads per key head `g`, and queries where nothing depends on their place."""

from __future__ import annotations

import math

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("Attention")
def _attention(o: Operator) -> Rule:
    """ONNX Attention, versions 23 on: operands Q, K, V, mask, past keys, past values, valid lengths.

    Three-dimensional operands hold the heads in their last dimension, (h g d) with d minor.  With
    grouped queries, query head (h, g) reads key head h: g may be split once h is split down to one.  The
    depth of the values stays whole: splitting it would repeat the scores, half of the work, on every rank.
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

    q, k, v, y = (
        ("b s (h g e!)", "b t! (h e!)", "b t! (h f!)", "b s (h g f!)")
        if flat
        else ("b (h g) s e!", "b h t! e!", "b h t! f!", "b (h g) s f!")
    )
    mask = " ".join(["b", "(h g)", "s", "*"][4 - o.rank(3) :]) if o.has(3) else "-"
    # Keys and values handed on lack the queries and the groups, over which they are no sums.
    whole = ["g", "s"] if o.yields(1) or o.yields(2) else []
    if o.attribute("is_causal", 0):
        whole.append("s")
    flops = 2.0 * o.shape(0)[0] * heads * queries * total * (depth + value_depth)
    return sharded(
        o,
        f"{q}, {k}, {v}, {mask}, b h * e!, b h * f!, b -> {y}, b h * e!, b h * f!, b (h g) s *",
        kind="attention",
        sizes={"h": key_heads, "g": heads // key_heads, "e": depth, "f": value_depth},
        whole=whole,
        linear=[(2,)] if not o.has(5) and not any(map(o.yields, (1, 2, 3))) else [],
        differentiable=(0, 1, 2, 3, 4, 5),
        saved=(0, 1, 2, 3),
        saved_results=(0,),
        flops=flops,
        # Scores are computed again, then four products of the same size (FlashAttention, Dao et al. 2022).
        backward_flops=2.5 * flops,
        counts={"q_num_heads": ("h", "g"), "kv_num_heads": ("h",)} if flat else None,
    )


@rule("com.microsoft::MultiHeadAttention")
def _multi_head_attention(o: Operator) -> Rule:
    """ONNX Runtime's: Q, K, V as (batch, sequence, heads · depth); nothing else but a broadcast score bias."""
    heads = int(o.attribute("num_heads", 0))
    if o.rank(0) != 3 or not o.has(2) or o.rank(1) != 3 or o.rank(2) != 3 or not heads:
        raise KeepWholeError("packed operands")
    if any(map(o.has, (3, 4, 6, 7, 8, 9))) or any(map(o.yields, (1, 2, 3))):
        raise KeepWholeError("bias, padding mask or past keys are given")
    batch, queries, hidden = o.shape(0)
    return sharded(
        o,
        "b s (h e!), b t! (h e!), b t! (h f!), -, -, b h s * -> b s (h f!)",
        kind="attention",
        sizes={"h": heads, "e": hidden // heads, "f": o.shape(2)[2] // heads},
        whole=["s"] if o.attribute("unidirectional", 0) else [],
        linear=[(2,)],
        differentiable=(0, 1, 2, 5),
        saved=(0, 1, 2, 5),
        saved_results=(0,),
        flops=2.0 * batch * queries * o.shape(1)[1] * (hidden + o.shape(2)[2]),
        backward_flops=5.0 * batch * queries * o.shape(1)[1] * (hidden + o.shape(2)[2]),
        counts={"num_heads": ("h",)},
    )


@rule("com.microsoft::RotaryEmbedding")
def _rotary_embedding_microsoft(o: Operator) -> Rule:
    """Sequence positions come from operand 1, per batch element or as one offset; heads lie in the last dimension."""
    if o.rank(0) != 4:
        raise KeepWholeError("heads and depth share a dimension whose cut is not stated")
    positions = "b s" if o.rank(1) == 2 else "*"
    return sharded(
        o,
        f"b h {'s' if o.rank(1) == 2 else 's!'} e!, {positions}, *..., *... -> b h s e!",
        linear=[(0,)],
        differentiable=(0,),
        saved=(1, 2, 3),
        flops=3.0 * math.prod(o.result()),
    )


@rule("RotaryEmbedding")
def _rotary_embedding(o: Operator) -> Rule:
    """ONNX's, versions 23 on: tables are (positions, half depth) with position ids, else (b, s, half depth)."""
    flat = o.rank(0) == 3
    heads = int(o.attribute("num_heads", 0))
    if flat and not heads:
        raise KeepWholeError("a three-dimensional operand without num_heads")
    x = "b s (h e!)" if flat else "b h s e!"
    table = "*..." if o.has(3) else "b s *"
    return sharded(
        o,
        f"{x}, {table}, {table}, b s -> {x}",
        sizes={"h": heads} if flat else None,
        linear=[(0,)],
        differentiable=(0,),
        saved=(1, 2, 3),
        flops=3.0 * math.prod(o.result()),
        counts={"num_heads": ("h",)} if flat else None,
    )
