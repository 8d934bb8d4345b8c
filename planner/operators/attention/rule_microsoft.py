"""Attention as ONNX Runtime fuses it: batch and heads; sequences where queries and keys are operands of their own.

Weights, biases and packed projections hold queries, keys and values of all heads behind each other, so that heads
are no contiguous part of them: they stay whole, and every rank takes its heads' columns (`aware`).
"""

from __future__ import annotations

from planner.ir.tensor import ITEM_BYTES
from planner.operators.attention.rule import RING, key_collectives, ring_collectives
from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []


def _score_bias(o: Operator, i: int, queries: str = "s", heads: str = "h") -> str:
    return f"b {heads} {queries} *" if o.has(i) else "-"


def _mask(o: Operator, i: int, queries: str) -> str:
    """Lengths (b), keys (b, t), keys by query (b, s, t) or (b, 1, …).

    Several values per sequence keep the batch whole.
    """
    if not o.has(i):
        return "-"
    rank = o.rank(i)
    if rank == 1:
        return "b" if o.shape(i)[0] == o.shape(0)[0] else "*"
    return ("b *", f"b {queries} *", "b * * *")[rank - 2]


def _packs_sequences(o: Operator, i: int) -> bool:
    return o.has(i) and o.rank(i) == 1 and o.shape(i)[0] != o.shape(0)[0]


@rule("com.microsoft::MultiHeadAttention")
def _multi_head_attention(o: Operator) -> Rule:
    """Q, K, V as (b, s, heads · depth), or packed; bias, padding mask, score bias, past keys and values.

    As ONNX's Attention (see `attention`), where operands are not packed and no cache is shared.
    """
    heads = int(o.attribute("num_heads", 0))
    if not heads:
        raise KeepWholeError("without num_heads")
    if o.has(9):
        raise KeepWholeError("beams share one cache")
    packed, other = o.rank(0) == 5, o.has(1) and o.rank(1) == 4
    depth = o.shape(0)[-1] // (1 if packed else heads)
    value_depth = o.result()[2] // heads
    queries = o.shape(0)[1]
    keys = queries if packed else o.shape(1)[2 if other else 1]
    past = o.shape(6)[2] if o.has(6) else 0
    together = packed or (o.has(1) and o.rank(1) == 5)  # keys with queries or with values
    present, scores = o.yields(1) or o.yields(2), o.yields(3)
    packs = _packs_sequences(o, 4)
    whole_keys = scores or together or o.has(8) or packs or (present and o.has(6))
    causal = bool(o.attribute("unidirectional", 0))
    s = "s!" if packed or o.has(8) or (packs and causal) else "s"
    q = "b s! h * *" if packed else f"b {s} (h e!)"
    k = "-" if not o.has(1) else "b t! h * *" if o.rank(1) == 5 else "b h t e!" if other else "b t (h e!)"
    v = "-" if not o.has(2) else "b h t f!" if other else "b t (h f!)"
    positions = "*" if o.has(6) or together or o.has(8) else "t"
    flops = 2.0 * o.shape(0)[0] * heads * queries * (keys + past) * (depth + value_depth)
    item_bytes = ITEM_BYTES.get(o.input_types[0], 4)
    return sharded(
        o,
        f"{q}, {k}, {v}, *, {_mask(o, 4, 's')}, {_score_bias(o, 5)}, b h p e!, b h p f!, *... -> "
        f"b s (h f!), b h {positions} e!, b h {positions} f!, b h s *",
        kind="attention",
        sizes={"h": heads, "e": depth, "f": value_depth},
        whole=[*(["t", "p"] if whole_keys else []), *(["b"] if packs else [])],
        combine=dict.fromkeys(("s", "t", "p"), Combine.INNER),
        linear=[(2, 7)] if (other or not o.has(3)) and not present and not scores else [],
        differentiable=(0, 1, 2, 3, 5, 6, 7),
        saved=(0, 1, 2, 3, 5, 6, 7),
        saved_results=(0,),
        flops=flops,
        backward_flops=2.5 * flops,
        counts={"num_heads": ("h",)},
        inner=()
        if whole_keys
        else (
            *key_collectives("t", value_depth, item_bytes),
            *key_collectives("p", value_depth, item_bytes),
            *ring_collectives(depth, value_depth, item_bytes),
        ),
        modes=None if whole_keys else {RING: ("s", "t")},
        aware=[*(["s"] if present or causal else []), *(["h"] if o.has(3) else [])],
    )


@rule("com.microsoft::DecoderMaskedMultiHeadAttention")
def _decoder_masked_multi_head_attention(o: Operator) -> Rule:
    """One query per sequence; its cache has room for the longest sequence and stays whole along it."""
    heads = int(o.attribute("num_heads", 0))
    if not heads or o.has(9):
        raise KeepWholeError("beams share one cache" if heads else "without num_heads")
    packed = not o.has(1)
    other = not packed and o.rank(1) == 4
    k, v = ("-", "-") if packed else ("b h * e!", "b h * f!") if other else ("b * (h e!)", "b * (h f!)")
    width = o.result()[2]
    return sharded(
        o,
        f"{'b * *' if packed else 'b * (h e!)'}, {k}, {v}, {_mask(o, 3, '*')}, {_score_bias(o, 4, '*')}, "
        "b h * *, b h * *, *..., *..., -, * -> b * (h f!), b h * *, b h * *, b h * *",
        kind="attention",
        sizes={"h": heads, "f": width // heads},
        linear=[(2,)] if other and not any(map(o.yields, (1, 2, 3))) else [],
        flops=4.0 * o.shape(0)[0] * width * (o.shape(5)[2] if o.has(5) else 1),
        counts={"num_heads": ("h",)},
        aware=["h"] if packed or o.has(10) else [],
    )


@rule("com.microsoft::GroupQueryAttention")
def _group_query_attention(o: Operator) -> Rule:
    """Key heads h, query heads per key head g; keys are appended to a cache, positions turned inside.

    Where a sequence's tokens belong in its cache follows from its length at run time: queries and keys stay whole.
    Of the positions of a prompt the operator reads the very first, that of another sequence elsewhere in the batch.
    """
    heads, key_heads = int(o.attribute("num_heads", 0)), int(o.attribute("kv_num_heads", 0))
    if not heads or not key_heads or heads % key_heads:
        raise KeepWholeError(f"{heads} query heads, {key_heads} key heads")
    if o.has(12) or o.has(13):
        raise KeepWholeError("a quantized cache")
    packed = not o.has(1)
    depth = o.result()[2] // heads
    q, k, v = ("b * *", "-", "-") if packed else ("b * (h g e!)", "b * (h e!)", "b * (h f!)")
    queries, total = o.shape(0)[1], o.result(1)[2] if o.yields(1) else o.shape(0)[1]
    return sharded(
        o,
        f"{q}, {k}, {v}, b h * *, b h * *, b, *..., *..., *..., b *, "
        f"{_score_bias(o, 10, '*', '(h g)')}, (h g), -, -, *, * -> b * (h g e!), b h * *, b h * *, b (h g) * *",
        kind="attention",
        sizes={"h": key_heads, "g": heads // key_heads, "e": depth, "f": depth},
        whole=["b"] if o.has(9) and queries > 1 else [],
        combine={"g": Combine.INNER},
        differentiable=range(len(o.inputs)),
        flops=4.0 * o.shape(0)[0] * heads * queries * total * depth,
        counts={"num_heads": ("h", "g"), "kv_num_heads": ("h",)},
        aware=["h", "g"] if packed else ["g"],
    )


@rule("com.microsoft::Attention", "com.microsoft::QAttention")
def _attention_with_projection(o: Operator) -> Rule:
    """The projection to queries, keys and values is inside: every query needs the keys of all tokens."""
    heads = int(o.attribute("num_heads", 0))
    if not heads:
        raise KeepWholeError("without num_heads")
    mask = 5 if o.type.endswith("QAttention") else 3
    batch, tokens, width = o.shape(0)
    value_width = o.result()[2]
    given = _mask(o, mask, "*")
    operands = (
        f"*..., *..., {given}, *..., *..., * b h * *"
        if mask == 5
        else f"{given}, * b h * *, {_score_bias(o, 5, '*')}, *..."
    )
    projection = 2.0 * batch * tokens * width * o.shape(1)[1]
    return sharded(
        o,
        f"b * *, * *, *, {operands} -> b * (h f!), * b h * *",
        kind="attention",
        sizes={"h": heads, "f": value_width // heads},
        whole=["b"] if _packs_sequences(o, mask) else [],
        differentiable=range(len(o.inputs)),
        flops=projection + 4.0 * batch * tokens * tokens * value_width,
        counts={"num_heads": ("h",)},
        aware=["h"],
    )
