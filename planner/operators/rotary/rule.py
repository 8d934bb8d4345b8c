"""Rotary positions: batch, sequence and heads; the features of a head are turned in pairs and stay whole."""

from __future__ import annotations

import math

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("com.microsoft::RotaryEmbedding")
def _rotary_embedding_microsoft(o: Operator) -> Rule:
    """Operand 1 holds the position of every token, or of the first one alone: then ranks add their own offset.

    Without a number of heads the tables span a whole head.
    """
    flat = o.rank(0) == 3
    depth = 2 * o.shape(2)[1]
    if flat and o.attribute("num_heads", 0):
        depth = o.shape(0)[2] // int(o.attribute("num_heads", 0))
    x = "b s (h e!)" if flat else "b h s e!"
    stated = o.rank(1) == 2
    return sharded(
        o,
        f"{x}, {'b s' if stated else '*'}, *..., *... -> {x}",
        sizes={"e": depth} if flat else None,
        linear=[(0,)],
        differentiable=(0,),
        saved=(1, 2, 3),
        flops=3.0 * math.prod(o.result()),
        counts={"num_heads": ("h",)},
        # Sequences of a ragged batch follow each other.
        whole=["b", "s"] if o.attribute("is_packed_batching", 0) and not stated else [],
        aware=[] if stated else ["s"],
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
