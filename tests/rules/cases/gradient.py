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
    yield from _statistics()
    yield case(f"{ms}GatherGrad", [i(12, 6), n(12, 4, 2), f(4, 2, 6)], axis=0, constants=[0], opset=1)
    yield case(f"{ms}GatherGrad", [i(4, 12, 6), n(12, 6) - 6, f(4, 6, 6)], axis=1, constants=[0], opset=1)
    yield case(f"{ms}GatherElementsGrad", [f(4, 6), i(4, 12), n(12, 4, 6)], axis=1, constants=[1], opset=1)
    yield case(f"{ms}GatherElementsGrad", [f(6, 4), i(12, 6), n(12, 6, 4) - 12], axis=0, constants=[1], opset=1)
    yield case(f"{ms}GatherNDGrad", [i(4, 12, 6), n(4, 6, 2), f(6, 6)], constants=[0], opset=1)
    yield case(f"{ms}GatherNDGrad", [i(4, 12, 6), n(6, 4, 6, 1), f(4, 6, 6)], batch_dims=1, constants=[0], opset=1)
    yield case(f"{ms}ConcatTraining", [f(4, 12), f(4, 6)], axis=1, results=2, opset=1)
    yield case(f"{ms}ConcatTraining", [f(4, 12), f(4, 12)], axis=-1, opset=1)
    yield case(f"{ms}ConcatTraining", [f(4, 12)], axis=1, results=2, opset=1)
    yield case(f"{ms}SplitTraining", [f(4, 18), i(12, 6)], axis=1, results=2, constants=[1], opset=1)
    yield case(f"{ms}SplitTraining", [f(4, 18), i(12, 6)], axis=1, results=2, opset=1)
    yield case(f"{ms}SliceGrad", [f(4, 6, 4), i(4, 6, 8), i(2), i(6), i(2), i(1)], constants=[1, 2, 3, 4, 5], opset=1)
    yield case(f"{ms}Scale", [f(4, 6), np.float32(3.0)], scale_down=1, opset=1)
    yield from _windows()


def _statistics() -> Iterator[Case]:
    """Gradients of softmax, normalisations and losses."""
    ms = "com.microsoft::"
    for axis in (0, 1, 2):
        y = np.exp(f(4, 6, 12))
        y = (y / y.sum(axis, keepdims=True)).astype(np.float32)
        yield case(f"{ms}SoftmaxGrad_13", [f(4, 6, 12), y], axis=axis, opset=1)
        yield case(f"{ms}LogSoftmaxGrad_13", [f(4, 6, 12), np.log(y)], axis=axis - 3, opset=1)
    y = (y / y.sum((1, 2), keepdims=True)).astype(np.float32)
    yield case(f"{ms}SoftmaxGrad", [f(4, 6, 12), y], axis=1, opset=1)
    yield case(f"{ms}LogSoftmaxGrad", [f(4, 6, 12), np.log(y)], axis=1, opset=1)
    t = f"{ms}LayerNormalizationGrad"
    yield case(t, [f(4, 6, 8), f(4, 6, 8), p(8), f(4, 6, 1), p(4, 6, 1)], results=3, axis=-1, opset=1)
    yield case(t, [f(4, 6, 8), f(4, 6, 8), p(6, 8), f(4, 1, 1), p(4, 1, 1)], results=3, axis=1, opset=1)
    t = f"{ms}SimplifiedLayerNormalizationGrad"
    yield case(t, [f(4, 6, 12), f(4, 6, 12), p(12), p(4, 6, 1)], results=2, axis=-1, opset=1)
    for reduction in ("mean", "sum", "none"):
        loss, labels = f(12) if reduction == "none" else np.float32(0.7), n(6, 12)
        labels[1:4] = 2  # one shard holds fewer labels that count than another
        t, told = f"{ms}SoftmaxCrossEntropyLossGrad", {"reduction": reduction, "opset": 1}
        yield case(t, [loss, -p(12, 6), n(6, 12)], **told)
        yield case(t, [loss, -p(12, 6), labels, p(6)], ignore_index=2, **told)
        wide = f(4, 6) if reduction == "none" else loss
        yield case(t, [wide, -p(4, 6, 6), n(6, 4, 6)], **told)
        t = f"{ms}SoftmaxCrossEntropyLossInternalGrad"
        yield case(t, [loss, -p(12, 6), labels, p(6), np.array(2, np.int64)], **told)
        yield case(t, [loss, -p(12, 6), labels, None, np.array(2, np.int64), f(12, 6)], **told)


def _windows() -> Iterator[Case]:
    """Gradients of convolutions and pools."""
    ms, pads = "com.microsoft::", (1, 1, 1, 1)
    conv = [f(6, 12, 5, 5), f(6, 4, 5, 5), f(12, 4, 3, 3)]
    yield case(f"{ms}ConvGrad", conv, results=3, pads=pads, strides=(1, 1), opset=1)
    yield case(f"{ms}ConvGrad", conv, results=2, pads=pads, strides=(1, 1), opset=1)
    grouped = [f(2, 12, 5, 5), f(2, 6, 5, 5), f(12, 1, 3, 3)]
    yield case(f"{ms}ConvGrad", grouped, results=2, pads=pads, strides=(1, 1), group=6, opset=1)
    strided = {"pads": pads, "strides": (2, 2)}
    yield case(f"{ms}ConvGrad", [f(2, 4, 6, 4), f(2, 2, 12, 8), f(4, 2, 3, 3)], results=3, **strided, opset=1)
    stem = [f(2, 2, 12, 12), f(2, 2, 24, 24), f(2, 2, 7, 7)]
    yield case(f"{ms}ConvGrad", stem, results=[False, True], pads=(3, 3, 3, 3), strides=(2, 2), opset=1)
    yield case(f"{ms}ConvGrad", [f(2, 4, 12), f(2, 2, 12), f(4, 1, 3)], results=2, pads=(2, 2), dilations=(2,), group=2,
               opset=1)  # fmt: skip
    for x, window in [
        (f(2, 4, 12, 8), {"kernel_shape": (3, 3), **strided}),
        (np.maximum(f(2, 4, 12, 8), 0), {"kernel_shape": (3, 3), "pads": pads}),
        (f(2, 4, 12, 8), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        (f(2, 2, 24), {"kernel_shape": (4,), "strides": (2,), "pads": (1, 1)}),
    ]:
        pooled = case("MaxPool", [x], results=2, **window)
        y, indices = pooled.results
        assert y is not None
        for t in ("MaxPoolGrad", f"{ms}MaxPoolGrad"):
            yield case(t, [f(*y.shape), indices], output_shapes=[x.shape], **window, opset=1)
        yield case("MaxPoolGrad", [f(*y.shape), indices], output_shapes=[x.shape], opset=1)
        for counted in (0, 1):
            told = {**window, "count_include_pad": counted}
            yield case(f"{ms}AveragePoolGrad", [f(*y.shape)], output_shapes=[x.shape], **told, opset=1)
            yield case("AveragePoolGrad", [f(*y.shape)], output_shapes=[x.shape], **told, opset=1)
    yield case(f"{ms}LeakyReluGrad", [f(4, 6), f(4, 6)], alpha=0.2, opset=1)
    yield case(f"{ms}QuickGeluGrad", [f(4, 6), f(4, 6)], alpha=1.5, opset=1)
    for axes, keep in (((1,), 0), ((0, -1), 1), ((), 1)):
        yield case(f"{ms}ReduceSumTraining", [f(4, 6, 12), i(*axes)], constants=[1], keepdims=keep, opset=1)
