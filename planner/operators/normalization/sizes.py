"""How normalisations carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import shaped_like_first

__all__: list[str] = []


shaped_like_first(
    "BatchNormalization",
    "GroupNormalization",
    "Hardmax",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LogSoftmax",
    "RMSNormalization",
    "Softmax",
)
shaped_like_first(
    "com.microsoft::BiasSoftmax", "com.microsoft::GroupNorm", "com.microsoft::SimplifiedLayerNormalization"
)
shaped_like_first("com.microsoft::SkipLayerNormalization", others=(1,))
shaped_like_first("com.microsoft::SkipSimplifiedLayerNormalization", others=(1,))
