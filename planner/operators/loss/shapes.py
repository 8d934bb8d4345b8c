"""What a loss is, and shapes of what losses give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.loss import losses
from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, first_of, infers, shape_of
from planner.ir import Op

__all__: list[str] = []

losses("NegativeLogLikelihoodLoss")
losses("SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal", of_scores=True)


@infers("com.microsoft::SoftmaxCrossEntropyLossInternal")
def _loss(op: Op, operands: Operands) -> list[Inferred]:
    """The loss, and log-probabilities shaped like the scores."""
    x = first_of(operands)
    if x is None:
        return [UNKNOWN]
    none = str(op.attributes.get("reduction", "mean")) == "none"
    return [(x[0], shape_of(operands, 1) if none else ()), x]
