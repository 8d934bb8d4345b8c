"""Losses: classes stay whole, batch and space are split.

A mean divides by the number (or total weight) of the labels that are not ignored, which differs from
rank to rank: the two sums are reduced inside the operator.
"""

from __future__ import annotations

import math

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["scored_mean"]


def scored_mean(factors: list[str], item_bytes: int, *, scalars: int) -> tuple[InnerCollective, ...]:
    """All-reduces of `scalars` single values over the ranks that share the batch."""
    forward = [InnerCollective(f, "all_reduce", (), scalars * item_bytes) for f in factors]
    # The backward divides by the total weight once more.
    return (*forward, *(InnerCollective(f, "all_reduce", (), item_bytes, backward=True) for f in factors))


@rule("SoftmaxCrossEntropyLoss")
def _softmax_cross_entropy(o: Operator) -> Rule:
    """Scores (n, c, d…), labels (n, d…) and class weights (c) to the loss and the log-probabilities."""
    space = labels("d", o.rank(0) - 2)
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    split = ["n", *space.split()]
    mean = reduction == "mean"
    return sharded(
        o,
        f"n c! {space}, n {space}, c! -> {loss}, n c! {space}",
        kind="normalization",
        combine=dict.fromkeys(split, Combine.INNER) if mean else {},
        differentiable=(0,),
        saved=(1, 2) if o.yields(1) else (0, 1, 2),
        saved_results=(1,),
        flops=14.0 * math.prod(o.shape(0)),
        backward_flops=4.0 * math.prod(o.shape(0)),
        inner=scored_mean(split, o.item_bytes, scalars=2) if mean else (),
    )


@rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(o: Operator) -> Rule:
    """As above, of log-probabilities, in which it is linear.  A mean keeps the batch whole."""
    space = labels("d", o.rank(0) - 2)
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    return sharded(
        o,
        f"n c! {space}, n {space}, c! -> {loss}",
        kind="reduction",
        whole=["n", *space.split()] if reduction == "mean" else [],
        linear=[(0,)],
        differentiable=(0,),
        saved=(1, 2),
        flops=2.0 * math.prod(o.shape(1)),
        backward_flops=1.0 * math.prod(o.shape(0)),
    )
