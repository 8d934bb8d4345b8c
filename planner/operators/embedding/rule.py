"""Embeddings as ONNX Runtime fuses them with the normalisation that follows."""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("com.microsoft::EmbedLayerNormalization")
def _embed_layer_normalization(o: Operator) -> Rule:
    """Tokens, segments, three tables, gain and shift, mask, positions; the second result counts the mask.

    Where no positions are given, tokens are counted from the first of the whole sequence.  The vocabulary stays
    whole: rows of words must be complete before they are normalised.
    """
    return sharded(
        o,
        "b s, b s, * h!, * h!, * h!, h!, h!, b s, b s -> b s h!, b, b s h!",
        kind="normalization",
        differentiable=(2, 3, 4, 5, 6),
        saved=(0, 1, 2, 3, 4, 5, 8),
        flops=10.0 * math.prod(o.result()),
        backward_flops=18.0 * math.prod(o.result()),
        aware=[] if o.has(8) else ["s"],
    )
