"""Small operators of one family: normalization."""

from __future__ import annotations

from collections.abc import Iterator

from tests.rules.cases.values import f, p
from tests.rules.prover import Case, case

__all__ = ["normalizations"]


def normalizations() -> Iterator[Case]:
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)])
    yield case("LayerNormalization", [f(4, 6, 12) + 100, p(12), f(12)])  # a mean far from zero must not cancel
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)], results=3)
    yield case("LayerNormalization", [f(4, 6, 8), p(8)])
    yield case("LayerNormalization", [f(4, 6, 8), p(6, 8), f(6, 8)], axis=1)
    yield case("LayerNormalization", [f(4, 6), p(4, 6), f(6)], axis=0, epsilon=1e-2)
    yield case("RMSNormalization", [f(4, 6, 8), p(8)], opset=23)
    yield case("RMSNormalization", [f(4, 6, 12), p(6, 12)], opset=23, axis=-2)
    yield case("SimplifiedLayerNormalization", [f(4, 6, 12), p(12)], opset=1, results=2)
    t = "com.microsoft::SkipLayerNormalization"
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), f(12), f(12)], opset=1, results=[True, False, False, True])
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), f(12)], opset=1)
    t = "com.microsoft::SkipSimplifiedLayerNormalization"
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12)], opset=1, results=[True, False, False, True])
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), f(12)], opset=1)
    for opset in (9, 15):
        yield case("BatchNormalization", [f(4, 6, 6, 4), p(6), f(6), f(6), p(6)], opset=opset)
    for x in ((4, 6, 6, 4), (12, 6)):
        yield case("BatchNormalization", [f(*x), p(6), f(6), f(6), p(6)], training_mode=1, results=3)
    yield case("BatchNormalization", [f(4, 6, 12), p(6), f(6), f(6), p(6)], training_mode=1, results=3, momentum=0.5)
    yield case("InstanceNormalization", [f(4, 6, 6, 4), p(6), f(6)])
    yield case("InstanceNormalization", [f(4, 6, 12), p(6), f(6)], epsilon=1e-2)
    yield case("GroupNormalization", [f(4, 12, 6, 4), p(12), f(12)], num_groups=6, opset=21)
    yield case("GroupNormalization", [f(4, 12, 6), p(12), f(12)], num_groups=2, opset=21)
    yield case("GroupNormalization", [f(4, 12, 6), p(12), f(12)], num_groups=1, opset=21)
    yield case("GroupNormalization", [f(4, 12, 6), p(6), f(6)], num_groups=6, opset=18)
    for order in (1, 2):
        yield case("LpNormalization", [f(4, 6)], axis=-1, p=order)
        yield case("LpNormalization", [f(4, 6, 12)], axis=1, p=order)
    yield case("MeanVarianceNormalization", [f(4, 6, 6, 4)])
    yield case("MeanVarianceNormalization", [f(4, 6, 12)], axes=(1, -1))
    for t in ("Softmax", "LogSoftmax"):
        yield case(t, [f(4, 6, 12)])
        yield case(t, [80 * f(4, 6, 12)])  # the maximum is of the whole row, or exponentials overflow
        yield case(t, [f(4, 6, 12)], axis=1)
        yield case(t, [f(4, 6, 12)], opset=11, axis=2)
        yield case(t, [f(4, 6, 4)], opset=11, axis=1)
    for axis in (1, 2):
        yield case("Hardmax", [f(4, 6, 12)], axis=axis)
