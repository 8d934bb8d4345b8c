"""Attention: heads apart, scores as operators of their own or inside one Attention operator.

Heads are a dimension of their own, and so are, in scores, the groups of queries that share a key head: keys and values
broadcast over them, for repeating them would copy what every group reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.builder.graph import GraphBuilder
from planner.builder.layers import linear, unsqueeze
from planner.builder.positions import rotated

__all__ = ["Core", "attend", "causal_mask", "join_heads", "mix", "self_attention", "split_heads", "split_queries"]


@dataclass(frozen=True, slots=True)
class Core:
    """What all layers of a model share in the core of attention.

    Attributes:
        fused: one causal Attention operator; `mask` is then not needed.
        mask: (seq, seq) booleans, true where a query may look at a key; None: everywhere.
        bias: what is added to scores, (heads, 1, seq), or (key heads, groups, 1, seq) where groups are apart;
            (heads, seq, seq) for the fused operator.
        turn: cosines and sines (seq, depth) by which queries and keys are rotated.
    """

    fused: bool = False
    mask: str | None = None
    bias: str | None = None
    turn: tuple[str, str] | None = None


def causal_mask(g: GraphBuilder, seq: int) -> str:
    """(seq, seq) booleans, true where a query may look at a key.

    Computed from positions: stored, the mask of a long sequence would dwarf the graph.
    """
    positions = g.add("Range", g.constant(0), g.constant(seq), g.constant(1))
    return g.add("GreaterOrEqual", unsqueeze(g, positions, 1), unsqueeze(g, positions, 0))


def split_heads(g: GraphBuilder, x: str, heads: int, depth: int) -> str:
    """(batch, sequence, heads · depth) → (batch, heads, sequence, depth)."""
    return g.add("Transpose", g.add("Reshape", x, g.constant([0, 0, heads, depth])), perm=[0, 2, 1, 3])


def split_queries(g: GraphBuilder, x: str, key_heads: int, groups: int, depth: int, *, fused: bool = False) -> str:
    """x (batch, sequence, …) with heads · depth elements per token → (batch, heads, sequence, depth).

    Where several queries share a key head and scores are operators: (batch, key heads, groups, sequence, depth).
    """
    if groups == 1 or fused:
        return split_heads(g, x, key_heads * groups, depth)
    x = g.add("Reshape", x, g.constant([0, 0, key_heads, groups, depth]))
    return g.add("Transpose", x, perm=[0, 2, 3, 1, 4])


def join_heads(g: GraphBuilder, x: str, width: int) -> str:
    """(batch, heads, sequence, depth) → (batch, sequence, width)."""
    return g.add("Reshape", g.add("Transpose", x, perm=[0, 2, 1, 3]), g.constant([0, 0, width]))


def attend(
    g: GraphBuilder,
    q: str,
    k: str,
    v: str,
    *,
    depth: int,
    rank: int = 4,
    mask: str | None = None,
    bias: str | None = None,
) -> str:
    """softmax(q kᵀ / √depth + bias) v over the last two dimensions; queries look where `mask` is true."""
    perm = [*range(rank - 2), rank - 1, rank - 2]
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=perm))
    scores = g.add("Mul", scores, g.constant(depth**-0.5, np.float32))
    if bias is not None:
        scores = g.add("Add", scores, bias)
    if mask is not None:
        scores = g.add("Where", mask, scores, g.constant(np.finfo(np.float32).min, np.float32))
    return g.add("MatMul", g.add("Softmax", scores, axis=-1), v)


def mix(g: GraphBuilder, q: str, k: str, v: str, core: Core, *, groups: int, depth: int, width: int) -> str:
    """Queries as `split_queries` gives them, keys and values (batch, key heads, sequence, …) → (…, sequence, width).

    `depth` is that of queries and keys, `width` that of all heads' values together.
    """
    if core.turn is not None:
        q, k = rotated(g, q, core.turn, depth), rotated(g, k, core.turn, depth)
    if core.fused:
        masks = [] if core.bias is None else [core.bias]
        return join_heads(g, g.add("Attention", q, k, v, *masks, is_causal=1), width)
    if groups == 1:
        return join_heads(g, attend(g, q, k, v, depth=depth, mask=core.mask, bias=core.bias), width)
    k, v = unsqueeze(g, k, 2), unsqueeze(g, v, 2)
    mixed = attend(g, q, k, v, depth=depth, rank=5, mask=core.mask, bias=core.bias)
    return g.add("Reshape", g.add("Transpose", mixed, perm=[0, 3, 1, 2, 4]), g.constant([0, 0, width]))


def self_attention(
    g: GraphBuilder,
    x: str,
    product: str,
    output: str,
    *,
    heads: int,
    depth: int,
    key_heads: int | None = None,
    core: Core = Core(),
    bias: bool = True,
) -> str:
    """Attention of x (batch, sequence, heads · depth) with itself.

    One `product` makes queries, keys and values, its columns ordered (key head, queries|k|v, depth) as in Megatron-LM
    and GPT-NeoX: heads are then contiguous and a column split keeps whole heads on a device.
    """
    width, keys = heads * depth, key_heads or heads
    groups = heads // keys
    qkv = linear(g, x, product, width, width + 2 * keys * depth, bias=bias)
    qkv = g.add("Reshape", qkv, g.constant([0, 0, keys, (groups + 2) * depth]))
    queries, *others = g.add_many("Split", 3, qkv, g.constant([groups * depth, depth, depth]), axis=-1)
    if groups == 1:
        q = g.add("Transpose", queries, perm=[0, 2, 1, 3])
    else:
        q = split_queries(g, queries, keys, groups, depth, fused=core.fused)
    k, v = (g.add("Transpose", part, perm=[0, 2, 1, 3]) for part in others)
    mixed = mix(g, q, k, v, core, groups=groups, depth=depth, width=width)
    return linear(g, mixed, output, width, width, bias=bias)
