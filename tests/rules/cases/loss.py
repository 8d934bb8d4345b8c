"""Small operators of one family: loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

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
        yield from _half(reduction)
    yield from _internal()


def _half(reduction: str) -> Iterator[Case]:
    """Sums of half precision are kept in single."""
    scores = (9 * f(12, 6)).astype(np.float16)
    yield case("NegativeLogLikelihoodLoss", [scores, n(6, 12)], reduction=reduction)
    yield case("SoftmaxCrossEntropyLoss", [scores, n(6, 12)], reduction=reduction)


def _internal() -> Iterator[Case]:
    """ONNX Runtime's own form, which states the label to ignore as an operand."""
    t = "com.microsoft::SoftmaxCrossEntropyLossInternal"
    for reduction in ("mean", "sum", "none"):
        labels, ignored = n(6, 12), np.array(2, np.int64)
        labels[2:5] = 2
        yield case(t, [f(12, 6), labels, None, ignored], reduction=reduction, results=2, opset=1)
        yield case(t, [f(12, 6), labels, p(6), ignored], reduction=reduction, opset=1)
