"""Small operators of one family: loss."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case

__all__ = ["losses"]


def losses() -> Iterator[Case]:
    for reduction in ("mean", "sum", "none"):
        ignored = n(6, 12)
        ignored[3] = ignored[7] = -100  # one shard holds fewer labels that count than another
        chosen = n(6, 4, 6)
        chosen[0, 1:4] = 2
        t = "SoftmaxCrossEntropyLoss"
        yield case(t, [f(12, 6), n(6, 12)], reduction=reduction)
        yield case(t, [50 * f(12, 6), ignored], reduction=reduction, ignore_index=-100, results=2)
        yield case(t, [f(12, 6), ignored, p(6)], reduction=reduction, ignore_index=-100, results=2)
        yield case(t, [f(4, 6, 6), chosen], reduction=reduction, ignore_index=2, results=2)
        yield case(t, [f(4, 6, 6), chosen, p(6)], reduction=reduction)
        t = "NegativeLogLikelihoodLoss"
        yield case(t, [f(12, 6), n(6, 12)], reduction=reduction)
        yield case(t, [f(12, 6), ignored, p(6)], reduction=reduction, ignore_index=-100)
        yield case(t, [f(4, 6, 6), chosen, p(6)], reduction=reduction, ignore_index=2)
