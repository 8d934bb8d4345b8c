"""Which operands of fused embeddings hold weights: tables, scale and bias."""

from __future__ import annotations

from planner.frontends.facts.weights import quantised_at, weights_at

__all__: list[str] = []

weights_at((2, 3, 4, 5, 6), "com.microsoft::EmbedLayerNormalization")

quantised_at({"QEmbedLayerNormalization": {2: (8, 13), 3: (9, 14), 4: (10, 15), 5: (11, 16), 6: (12, 17)}})
