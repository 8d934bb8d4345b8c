"""Small operators of one family: normalization."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f, p
from tests.rules.prover import Case, case

__all__ = ["normalizations"]


def normalizations() -> Iterator[Case]:
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)])
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)], results=3)
    yield case("LayerNormalization", [f(4, 6, 8), p(8)])
    yield case("LayerNormalization", [f(4, 6, 8), p(6, 8), f(6, 8)], axis=1)
    yield case("RMSNormalization", [f(4, 6, 8), p(8)], opset=23)
    yield case("BatchNormalization", [f(4, 6, 6, 4), p(6), f(6), f(6), p(6)])
    yield case("BatchNormalization", [f(4, 6, 6, 4), p(6), f(6), f(6), p(6)], opset=9)
    yield case("BatchNormalization", [f(4, 6, 6, 4), p(6), f(6), f(6), p(6)], training_mode=1, results=3)
    yield case("InstanceNormalization", [f(4, 6, 6, 4), p(6), f(6)])
    yield case("GroupNormalization", [f(4, 12, 6, 4), p(12), f(12)], num_groups=6, opset=21)
    yield case("LpNormalization", [f(4, 6)], axis=-1)
    yield case("MeanVarianceNormalization", [f(4, 6, 6, 4)])
    for t in ("Softmax", "LogSoftmax", "Hardmax"):
        yield case(t, [f(4, 6, 12)])
        yield case(t, [f(4, 6, 12)], axis=1)
        yield case(t, [f(4, 6, 12)], opset=11, axis=2)
