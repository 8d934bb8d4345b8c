"""Small operators of one family: normalization."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, n, p
from tests.rules.prover import Case, case

__all__ = ["normalizations"]


def normalizations() -> Iterator[Case]:
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)])
    yield case("LayerNormalization", [f(4, 6, 12) + 100, p(12), f(12)])  # a mean far from zero must not cancel
    yield case("LayerNormalization", [f(4, 6, 8), p(8), f(8)], results=3)
    yield case("LayerNormalization", [v.astype(np.float16) for v in (60 * f(4, 6, 12), p(12), f(12))])
    yield case("LayerNormalization", [f(4, 6, 8), p(8)])
    yield case("LayerNormalization", [f(4, 6, 8), p(6, 8), f(6, 8)], axis=1)
    yield case("LayerNormalization", [f(4, 6), p(4, 6), f(6)], axis=0, epsilon=1e-2)
    yield case("RMSNormalization", [f(4, 6, 8), p(8)], opset=23)
    yield case("RMSNormalization", [f(4, 6, 12), p(6, 12)], opset=23, axis=-2)
    for x in (f(4, 6, 12), 60 * f(4, 6, 12).astype(np.float16)):  # sums of squares overflow half precision
        own = {"opset": 1, "stash_type": 1}
        yield case("SimplifiedLayerNormalization", [x, p(12).astype(x.dtype)], **own)
    yield case("SimplifiedLayerNormalization", [f(4, 6, 12), p(12)], opset=1, results=2)
    yield case("com.microsoft::SimplifiedLayerNormalization", [f(4, 6, 12), p(12)], opset=1)
    t = "com.microsoft::SkipLayerNormalization"
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), f(12), f(12)], opset=1, results=[True, False, False, True])
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), f(12)], opset=1)
    yield case(t, [f(4, 6, 12), f(6, 12), p(12), f(12), f(12)], opset=1)  # the same for the whole batch
    yield case(t, [f(4, 6, 12), f(1, 6, 12), p(12), f(12)], opset=1, results=[True, False, False, True])
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
    yield case("LpNormalization", [np.where(np.arange(4)[:, None] == 1, 0, f(4, 6)).astype(np.float32)])
    yield case("LRN", [f(4, 12, 6, 2)], size=3, alpha=2.0)
    yield case("LRN", [f(2, 12, 4, 2)], size=5, alpha=1.5, beta=0.6, bias=2.0)
    yield case("LRN", [f(2, 12, 2, 2)], size=9, alpha=1.5)  # wider than a shard
    yield from _softmaxes()
    yield from _training()
    yield from _own()


def _softmaxes() -> Iterator[Case]:
    masked = np.where(np.arange(12) < 6, -np.inf, f(4, 6, 12)).astype(np.float32)  # all that one shard holds
    for t in ("Softmax", "LogSoftmax"):
        yield case(t, [f(4, 6, 12)])
        yield case(t, [80 * f(4, 6, 12)])  # the maximum is of the whole row, or exponentials overflow
        yield case(t, [f(4, 6, 12)], axis=1)
        yield case(t, [f(4, 6, 12).astype(np.float16)], axis=-2)
        yield case(t, [f(4, 6, 12)], opset=11, axis=2)
        yield case(t, [f(4, 6, 4)], opset=11, axis=1)
    yield case("Softmax", [masked])
    tied = n(3, 4, 6, 12).astype(np.float32)
    for axis in (0, 1, 2):
        yield case("Hardmax", [tied], axis=axis)
    yield case("Hardmax", [tied], axis=1, opset=11)
    yield case("Hardmax", [tied[:1]], axis=0, opset=11)


def _training() -> Iterator[Case]:
    """Statistics over the batch, and their gradient, of exported training graphs."""
    ms = "com.microsoft::"
    for x in ((4, 6, 6, 4), (12, 6)):
        operands = [f(*x) + 3, p(6), f(6), f(6), p(6)]
        yield case(f"{ms}BatchNormInternal", operands, results=5, momentum=0.7, opset=1)
        yield case(f"{ms}BatchNormInternal", operands, opset=1)
        yield case(f"{ms}BatchNormalizationGrad", [f(*x), f(*x), p(6), f(6), p(6)], results=3, opset=1)


def _own() -> Iterator[Case]:
    """ONNX Runtime's fused forms."""
    ms = "com.microsoft::"
    for bias in ((1, 1, 6, 12), (4, 1, 1, 12), (4, 6, 6, 12)):
        yield case(f"{ms}BiasSoftmax", [f(4, 6, 6, 12), f(*bias)], axis=3, is_inner_broadcast=1, opset=1)
    yield case(f"{ms}BiasSoftmax", [f(4, 6, 12), f(1, 6, 12)], axis=1, is_inner_broadcast=0, opset=1)
    for groups in (1, 2, 6):
        told = {"groups": groups, "activation": groups % 2, "opset": 1}
        yield case(f"{ms}GroupNorm", [f(4, 6, 4, 12), p(12), f(12)], **told)
        yield case(f"{ms}GroupNorm", [f(4, 12, 6, 4), p(12), f(12)], channels_last=0, **told)
