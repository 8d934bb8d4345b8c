"""Losses: batch and space are split, and the classes.

A mean divides by the number (or total weight) of the labels that are not ignored, which differs from rank to rank: the
two sums are reduced inside the operator.  Over split classes each row reduces its maximum, then, packed, its sum of
exponentials and what the rank that holds the label picked (vocabulary-parallel cross-entropy, Shoeybi et al. 2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, InnerCollective, Rule

__all__ = ["mean_sums", "row_values", "score_bytes"]


def score_bytes(o: Operator) -> int:
    """Sums are kept in single precision at least."""
    return max(4, o.item_bytes)


def mean_sums(factors: Sequence[str], item_bytes: int, *, scalars: int) -> list[InnerCollective]:
    """One all-reduce of `scalars` single values over the ranks that share the batch."""
    return [InnerCollective(f, "all_reduce", (), scalars * item_bytes, statistic=True) for f in factors]


def row_values(
    rows: Sequence[str], item_bytes: int, values: int, *, reduction: str = "sum", backward: bool = False
) -> list[InnerCollective]:
    """One all-reduce of `values` per row, if any, over the ranks that share the classes."""
    if not values:
        return []
    return [InnerCollective("c", "all_reduce", tuple(rows), values * item_bytes, backward, reduction, statistic=True)]


@rule("SoftmaxCrossEntropyLoss", "com.microsoft::SoftmaxCrossEntropyLossInternal")
def _softmax_cross_entropy(o: Operator) -> Rule:
    """Scores (n, c, d…), labels (n, d…) and class weights (c) to the loss and the log-probabilities."""
    space = labels("d", o.rank(0) - 2)
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    rows = ["n", *space.split()]
    mean, size = reduction == "mean", score_bytes(o)
    return sharded(
        o,
        f"n c {space}, n {space}, c -> {loss}, n c {space}",
        kind="normalization",
        combine={"c": Combine.INNER} | (dict.fromkeys(rows, Combine.INNER) if mean else {}),
        differentiable=(0,),
        saved=(1, 2) if o.yields(1) else (0, 1, 2),
        saved_results=(1,),
        flops=14.0 * math.prod(o.shape(0)),
        backward_flops=4.0 * math.prod(o.shape(0)),
        inner=[
            *row_values(rows, size, 1, reduction="max"),
            *row_values(rows, size, 2 + o.has(2)),
            *row_values(rows, size, int(o.yields(1)), backward=True),
            *(mean_sums(rows, size, scalars=2) if mean else ()),
        ],
    )


@rule("NegativeLogLikelihoodLoss")
def _negative_log_likelihood(o: Operator) -> Rule:
    """As above, of log-probabilities, in which it is linear: what a rank picks of its classes is a pending sum."""
    space = labels("d", o.rank(0) - 2)
    reduction = str(o.attribute("reduction", "mean"))
    loss = f"n {space}" if reduction == "none" else ""
    every = ["c", "n", *space.split()]
    mean = reduction == "mean"
    return sharded(
        o,
        f"n c {space}, n {space}, c -> {loss}",
        kind="reduction",
        combine=dict.fromkeys(every, Combine.INNER) if mean else {},
        linear=[(0,)],
        differentiable=(0,),
        saved=(1, 2),
        flops=2.0 * math.prod(o.shape(1)),
        backward_flops=1.0 * math.prod(o.shape(0)),
        inner=mean_sums(every, score_bytes(o), scalars=2) if mean else (),
        aware=["c"],
    )
