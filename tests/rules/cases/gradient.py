"""Small operators of one family: gradient."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.cases.values import f, i, n, p
from tests.rules.prover import Case, case

__all__ = ["gradients"]


def gradients() -> Iterator[Case]:
    ms = "com.microsoft::"
    for t in ("GeluGrad", "ReluGrad", "SigmoidGrad", "TanhGrad", "FastGeluGrad"):
        yield case(f"{ms}{t}", [f(4, 6), f(4, 6)], opset=1)
    y = np.exp(f(4, 6))
    yield case(f"{ms}SoftmaxGrad_13", [f(4, 6), (y / y.sum(1, keepdims=True)).astype(np.float32)], axis=-1, opset=1)
    yield case(
        f"{ms}LayerNormalizationGrad",
        [f(4, 6, 8), f(4, 6, 8), p(8), f(4, 6, 1), p(4, 6, 1)],
        results=3,
        axis=-1,
        opset=1,
    )
    for reduction in ("mean", "sum"):
        inputs = [np.float32(0.7), -p(12, 6), n(6, 12)]
        yield case(f"{ms}SoftmaxCrossEntropyLossGrad", inputs, reduction=reduction, opset=1)
    yield case(f"{ms}GatherGrad", [i(12, 6), n(12, 4, 2), f(4, 2, 6)], axis=0, constants=[0], opset=1)
    yield case(f"{ms}SliceGrad", [f(4, 6, 4), i(4, 6, 8), i(2), i(6), i(2), i(1)], constants=[1, 2, 3, 4, 5], opset=1)
    conv = [f(6, 12, 5, 5), f(6, 4, 5, 5), f(12, 4, 3, 3)]
    yield case(f"{ms}ConvGrad", conv, results=3, pads=(1, 1, 1, 1), strides=(1, 1), opset=1)
    yield case(f"{ms}ConvGrad", conv, results=2, pads=(1, 1, 1, 1), strides=(1, 1), opset=1)
    grouped = [f(2, 12, 5, 5), f(2, 6, 5, 5), f(12, 1, 3, 3)]
    yield case(f"{ms}ConvGrad", grouped, results=2, pads=(1, 1, 1, 1), strides=(1, 1), group=6, opset=1)
    yield case(f"{ms}Scale", [f(4, 6), np.float32(3.0)], scale_down=1, opset=1)
    yield case("MaxPoolGrad", [f(2, 4, 2, 2), n(64, 2, 4, 2, 2)], output_shapes=[(2, 4, 4, 4)], opset=1)
