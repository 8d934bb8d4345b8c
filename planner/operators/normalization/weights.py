"""Which operands of normalisations hold weights: scale and bias, behind a skip connection one further on."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((1, 2), "BatchNormalization", statistics=(3, 4))
weights_at(
    (1, 2), "GroupNormalization", "InstanceNormalization", "LayerNormalization", "com.microsoft::GroupNorm"
)  # fmt: skip
weights_at((1,), "RMSNormalization", "SimplifiedLayerNormalization")
weights_at((2, 3, 4), "SkipLayerNormalization")
weights_at((2, 3), "SkipSimplifiedLayerNormalization")
