"""What normalisations ask of the values of their operands: that scales are no zeros, and variances positive."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads(
    "GroupNormalization", "InstanceNormalization", "LayerNormalization", "RMSNormalization",
    "SimplifiedLayerNormalization", "com.microsoft::SimplifiedLayerNormalization",
)  # fmt: skip
def _norm(r: Reading) -> Uses:
    return {1: Use(near_one=True), 2: Use(shift=True)}


@reads("BatchNormalization")
def _batch_norm(r: Reading) -> Uses:
    return {1: Use(near_one=True), 2: Use(shift=True), 3: Use(shift=True), 4: Use(positive=True)}
