"""How losses carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(c: Carrier, op: Op) -> None:
    """Scores [samples, classes, …] and labels [samples, …] agree but for the classes."""
    scores, labels = op.inputs[:2]
    for k in range(len(c.before(labels))):
        j = k if k == 0 else k + 1
        if c.after(scores)[j] != c.before(scores)[j]:
            c.demand(labels, k, c.after(scores)[j], op)
        elif c.after(labels)[k] != c.before(labels)[k]:
            c.demand(scores, j, c.after(labels)[k], op)
