"""Which operands of fused attention hold weights."""

from __future__ import annotations

from planner.frontends.facts.weights import quantised_at, weights_at

__all__: list[str] = []

weights_at((1, 2), "com.microsoft::Attention")
weights_at((3,), "com.microsoft::MultiHeadAttention")

quantised_at({"QAttention": {1: (4, 7), 2: ()}})
