"""Positions of tokens: a learned table, rotations of queries and keys, or a penalty on distance."""

from __future__ import annotations

import math

import numpy as np

from planner.builder.graph import GraphBuilder
from planner.builder.layers import unsqueeze

__all__ = ["alibi", "position_embedding", "rotary_tables", "rotated"]

ROTARY_BASE = 10000.0  # RoFormer, Su et al. 2021


def position_embedding(g: GraphBuilder, name: str, rows: int, used: int, width: int) -> str:
    """The first `used` rows of a table (rows, width) of learned positions."""
    with g.scope(name, "Embedding"):
        table = g.parameter("weight", rows, width)
        if rows == used:
            return table
        return g.add("Slice", table, g.constant([0]), g.constant([used]), g.constant([0]))


def rotary_tables(g: GraphBuilder, seq: int, depth: int) -> tuple[str, str]:
    """Cosines and sines (seq, depth) of position times frequency, both halves of the depth alike."""
    frequencies = ROTARY_BASE ** (-np.arange(0, depth, 2, dtype=np.float64) / depth)
    angles = g.add("Mul", unsqueeze(g, _positions(g, seq), 1), g.constant(frequencies, np.float32))
    angles = g.add("Concat", angles, angles, axis=-1)
    return g.add("Cos", angles), g.add("Sin", angles)


def rotated(g: GraphBuilder, x: str, turn: tuple[str, str], depth: int) -> str:
    """x (…, seq, depth) turned by its position: x · cos + (−x₂, x₁) · sin."""
    first, second = g.add_many("Split", 2, x, g.constant([depth // 2] * 2), axis=-1)
    crossed = g.add("Concat", g.add("Neg", second), first, axis=-1)
    return g.add("Add", g.add("Mul", x, turn[0]), g.add("Mul", crossed, turn[1]))


def alibi(g: GraphBuilder, seq: int, *heads: int) -> str:
    """What ALiBi (Press et al. 2022) adds to scores: (heads…, 1, seq), every head's slope times the key's position.

    The paper's penalty on the distance of a key differs from it by a constant per query, which a softmax ignores.
    """
    slopes = np.reshape(_slopes(math.prod(heads)), (*heads, 1, 1))
    return g.add("Mul", g.constant(slopes, np.float32), _positions(g, seq))


def _slopes(heads: int) -> list[float]:
    """2^(−8 i / n) for i = 1 … n, n the largest power of two within `heads`; the rest takes every second one of 2 n."""
    power = 1 << (heads.bit_length() - 1)
    own = [2.0 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2.0 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return own + between


def _positions(g: GraphBuilder, seq: int) -> str:
    zero, end, one = (g.constant(float(v), np.float32) for v in (0, seq, 1))
    return g.add("Range", zero, end, one)
