"""What losses ask of the values of their operands: that labels name classes."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _labels(r: Reading) -> Uses:
    return {1: Use(below=r.shape(0)[1:2]), 2: Use(positive=True)}
