"""Small operators of every family, with sizes that divide by 2, 3, 4 and 6."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.rules.prover import Case, case

__all__ = [
    "attention", "contractions", "convolutions", "elementwise", "gradients", "indexing", "layouts", "losses",
    "normalizations", "quantized", "recurrent", "reductions",
]  # fmt: skip

_RNG = np.random.default_rng(0)


def f(*shape: int) -> np.ndarray:
    """Standard normal values."""
    return _RNG.standard_normal(shape).astype(np.float32)


def p(*shape: int) -> np.ndarray:
    """Positive values."""
    return (np.abs(_RNG.standard_normal(shape)) + 0.5).astype(np.float32)


def n(high: int, *shape: int) -> np.ndarray:
    """Indices below `high`."""
    return _RNG.integers(0, high, size=shape).astype(np.int64)


def i(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def elementwise() -> Iterator[Case]:
    for t in (
        "Relu",
        "Gelu",
        "Tanh",
        "Sigmoid",
        "Erf",
        "Exp",
        "Neg",
        "Identity",
        "Sin",
        "Cos",
        "Softplus",
        "HardSwish",
        "HardSigmoid",
        "LeakyRelu",
        "Elu",
        "Selu",
        "Abs",
        "Sign",
        "Floor",
        "Softsign",
        "Mish",
    ):
        yield case(t, [f(4, 6)])
    for t in ("Sqrt", "Log", "Reciprocal"):
        yield case(t, [p(4, 6)])
    for t in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Equal", "Greater", "LessOrEqual"):
        for shapes in (((6, 4), (6, 4)), ((6, 1, 4), (2, 1)), ((6, 4), (4,)), ((6, 4), ()), ((1, 4), (6, 1))):
            yield case(t, [p(*shapes[0]), p(*shapes[1])])
    yield case("Add", [n(5, 4, 6), n(5, 6)])
    yield case("Sum", [f(4, 6), f(6), f(4, 1)])
    yield case("Pow", [p(4, 6), np.float32(2.0)])
    yield case("Where", [f(4, 6) > 0, f(4, 1), f(6)])
    yield case("And", [f(4, 6) > 0, f(6) > 0])
    yield case("Not", [f(4, 6) > 0])
    yield case("IsNaN", [f(4, 6)])
    yield case("Clip", [f(4, 6), np.float32(-0.5), np.float32(0.5)])
    yield case("Clip", [f(4, 6)], opset=9, min=-0.5, max=0.5)
    yield case("PRelu", [f(2, 6, 4), f(6, 1)])
    yield case("Cast", [f(4, 6)], to=10)
    yield case("Cast", [f(4, 6)], to=7)
    yield case("Cast", [n(9, 4, 6)], to=1)
    yield case("Dropout", [f(4, 6)])
    yield case("Dropout", [f(4, 6)], opset=7, ratio=0.5)
    yield case("QuantizeLinear", [f(4, 6), np.float32(0.1), np.uint8(3)])
    yield case("QuantizeLinear", [f(4, 6), p(6), np.zeros(6, np.int8)])
    yield case("DequantizeLinear", [n(9, 4, 6).astype(np.int8), p(4), np.zeros(4, np.int8)], axis=0)


def contractions() -> Iterator[Case]:
    for a, b in (
        ((6, 4), (4, 12)),
        ((2, 3, 6, 4), (4, 6)),
        ((2, 3, 6, 4), (2, 3, 4, 6)),
        ((3, 6, 4), (2, 1, 4, 6)),
        ((4,), (4, 6)),
        ((6, 4), (4,)),
        ((4,), (4,)),
        ((2, 6, 4), (4,)),
        ((4,), (2, 4, 6)),
        ((1, 4), (4, 6)),
    ):
        yield case("MatMul", [f(*a), f(*b)])
    for ta, tb in ((0, 0), (1, 0), (0, 1), (1, 1)):
        left, right = (6, 4)[:: -1 if ta else 1], (4, 12)[:: -1 if tb else 1]
        yield case("Gemm", [f(*left), f(*right), f(12)], transA=ta, transB=tb, alpha=0.5, beta=2.0)
        yield case("com.microsoft::FusedMatMul", [f(2, *left), f(2, *right)], transA=ta, transB=tb, alpha=0.5, opset=1)
    for c in ((6, 12), (6, 1), (1, 12), (1,), ()):
        yield case("Gemm", [f(6, 4), f(4, 12), f(*c)])
    yield case("Gemm", [f(6, 4), f(4, 12)])
    for equation, shapes in (
        ("bij,bjk->bik", ((2, 6, 4), (2, 4, 6))),
        ("ij,kj->ik", ((6, 4), (12, 4))),
        ("ij->ji", ((6, 4),)),
        ("...ij,...jk->...ik", ((2, 6, 4), (2, 4, 6))),
        ("bhqd,bhkd->bhqk", ((2, 2, 6, 4), (2, 2, 6, 4))),
        ("ii->i", ((6, 6),)),
        ("ij,jk", ((6, 4), (4, 6))),
        ("ij->", ((6, 4),)),
    ):
        yield case("Einsum", [f(*s) for s in shapes], equation=equation)


def convolutions() -> Iterator[Case]:
    pads = (1, 1, 1, 1)
    yield case("Conv", [f(6, 4, 5, 5), f(12, 4, 3, 3), f(12)], pads=pads, strides=(2, 2))
    yield case("Conv", [f(6, 4, 6, 4), f(12, 4, 1, 1), f(12)])
    yield case("Conv", [f(2, 3, 12, 8), f(12, 3, 2, 2), f(12)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 4, 6, 4), f(4, 6, 2, 2), f(6)], strides=(2, 2))
    yield case("MaxPool", [f(4, 6, 12, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("Conv", [f(2, 4, 9), f(6, 4, 3), f(6)], dilations=(2,))
    yield case("Conv", [f(2, 12, 5, 5), f(12, 1, 3, 3), f(12)], group=12, pads=pads)
    yield case("Conv", [f(2, 12, 5, 5), f(24, 2, 3, 3), f(24)], group=6, pads=pads)
    yield case("Conv", [f(2, 8, 5, 5), f(8, 4, 3, 3)], group=2, auto_pad="SAME_UPPER")
    yield case("ConvTranspose", [f(2, 4, 5, 5), f(4, 6, 3, 3), f(6)], strides=(2, 2))
    yield case("ConvTranspose", [f(2, 12, 5, 5), f(12, 2, 3, 3), f(12)], group=6)
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), strides=(2, 2), pads=pads)
    yield case("MaxPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), results=2)
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(2, 2), strides=(2, 2))
    yield case("AveragePool", [f(4, 6, 8, 8)], kernel_shape=(3, 3), pads=pads, count_include_pad=1)
    yield case("LpPool", [f(4, 6, 8, 8)], kernel_shape=(2, 2))
    for t in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield case(t, [f(4, 6, 6, 4)])
    yield case("LRN", [f(4, 6, 6, 4)], size=3, alpha=2.0)


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


def losses() -> Iterator[Case]:
    for reduction in ("mean", "sum", "none"):
        t = "SoftmaxCrossEntropyLoss"
        ignored = n(6, 12)
        ignored[3] = -100
        yield case(t, [f(12, 6), n(6, 12)], reduction=reduction)
        yield case(t, [f(12, 6), ignored, p(6)], reduction=reduction, ignore_index=-100, results=2)
        yield case(t, [f(4, 6, 6), n(6, 4, 6)], reduction=reduction, results=2)
        yield case("NegativeLogLikelihoodLoss", [f(12, 6), n(6, 12)], reduction=reduction)


def reductions() -> Iterator[Case]:
    for t in (
        "ReduceSum",
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceProd",
        "ReduceLogSumExp",
        "ReduceSumSquare",
        "ReduceLogSum",
    ):
        yield case(t, [p(4, 6, 2), i(1)], constants=[1])
        yield case(t, [p(4, 6, 2), i(-1, 0)], constants=[1], keepdims=0)
        yield case(t, [p(4, 6)], keepdims=0)
        yield case(t, [p(4, 6, 2)], opset=11, axes=(1,), keepdims=0)
    yield case("ReduceSum", [f(4, 6), i()], constants=[1], noop_with_empty_axes=1)
    yield case("ReduceMax", [n(9, 4, 6), i(0)], constants=[1])
    yield case("ArgMax", [f(4, 6, 12)], axis=1, keepdims=0)
    yield case("ArgMin", [f(4, 6, 12)], axis=-1)
    yield case("CumSum", [f(4, 6), i(1)], constants=[1])


def layouts() -> Iterator[Case]:
    for a, b in (
        ((4, 6, 12), (24, 12)),
        ((24, 12), (4, 6, 12)),
        ((4, 6, 12), (4, 6, 3, 4)),
        ((4, 6, 2, 4), (4, 6, 8)),
        ((6, 4), (4, 6)),
        ((4, 6), (1, 4, 6, 1)),
        ((12, 6), (6, 12)),
        ((2, 1, 6), (12,)),
        ((24,), (2, 3, 4)),
        ((6, 10), (4, 15)),
    ):
        yield case("Reshape", [f(*a), i(*b)], constants=[1])
    yield case("Reshape", [f(4, 6, 12), i(0, -1)], constants=[1])
    yield case("Flatten", [f(4, 6, 2)], axis=1)
    yield case("Flatten", [f(4, 6, 2)], axis=2)
    yield case("Flatten", [f(4, 6, 2)], axis=0)
    yield case("Squeeze", [f(4, 1, 6), i(1)], constants=[1])
    yield case("Squeeze", [f(2, 1, 6)])
    yield case("Unsqueeze", [f(4, 6), i(0, 2)], constants=[1])
    yield case("Unsqueeze", [f(4, 6)], opset=11, axes=(1,))
    yield case("Transpose", [f(4, 6, 2)], perm=(2, 0, 1))
    yield case("Transpose", [f(4, 6)])
    yield case("Expand", [f(6, 1), i(4, 6, 12)], constants=[1])
    yield case("Concat", [f(4, 6), f(4, 2), f(4, 6)], axis=1)
    yield case("Split", [f(4, 6), i(2, 4)], axis=1, results=2, constants=[1])
    yield case("Split", [f(4, 6)], axis=-1, results=2, num_outputs=2)
    yield case("Slice", [f(4, 6, 12), i(0, 2), i(2**62, 8), i(0, 2), i(1, 2)], constants=[1, 2, 3, 4])
    yield case("Slice", [f(4, 6), i(-1), i(-(2**62)), i(1), i(-1)], constants=[1, 2, 3, 4])
    yield case("Slice", [f(4, 6), i(1), i(4)], constants=[1, 2])
    yield case("Slice", [f(4, 6)], opset=9, starts=(1,), ends=(3,), axes=(1,))
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2)], constants=[1])
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2), np.float32(1.5)], constants=[1, 2])
    yield case("Pad", [f(4, 6), i(0, 1, 0, 2)], constants=[1], mode="reflect")
    yield case("Pad", [f(4, 6)], opset=2, pads=(1, 0, 1, 0))
    yield case("Tile", [f(4, 6), i(1, 2)], constants=[1])
    yield case("Trilu", [f(4, 6, 6)], upper=0)
    yield case("DepthToSpace", [f(4, 24, 2, 3)], blocksize=2)
    yield case("DepthToSpace", [f(4, 24, 2, 3)], blocksize=2, mode="CRD")
    yield case("SpaceToDepth", [f(4, 6, 4, 6)], blocksize=2)
    yield case("Resize", [f(4, 6, 3, 4), None, np.array([1, 1, 2, 2], np.float32)], mode="nearest", constants=[2])
    yield case("Resize", [f(4, 6, 3, 4), None, None, i(4, 6, 6, 6)], mode="linear", constants=[3])
    yield case("Upsample", [f(4, 6, 3, 4), np.array([1, 1, 2, 2], np.float32)], opset=9, constants=[1])
    yield case("ReverseSequence", [f(6, 4, 2), i(1, 2, 3, 6)], batch_axis=1, time_axis=0)
    yield case("Range", [i(0)[0], i(6)[0], i(1)[0]])
    yield case("Shape", [f(4, 6)])


def indexing() -> Iterator[Case]:
    yield case("Gather", [f(12, 6), n(12, 4, 6)])
    yield case("Gather", [f(4, 12, 6), n(12, 6)], axis=1)
    yield case("Gather", [f(4, 12, 6), np.int64(-2)], axis=1)
    yield case("Gather", [n(9, 12), n(12, 6)])
    yield case("GatherElements", [f(4, 6), n(6, 4, 12)], axis=1)
    yield case("GatherElements", [f(4, 6), n(6, 2, 12)], axis=1)
    yield case("GatherND", [f(4, 6, 12), n(4, 6, 2)])
    yield case("GatherND", [f(4, 6, 12), n(6, 4, 6, 1)], batch_dims=1)
    rows = np.stack([_RNG.permutation(12)[:6] for _ in range(4)])
    for reduction in ("none", "add", "mul"):
        yield case("ScatterElements", [f(4, 12), rows, f(4, 6)], axis=1, reduction=reduction)
        yield case("ScatterND", [f(12, 6), rows[0][:, None], f(6, 6)], reduction=reduction)
    yield case("ScatterElements", [f(6, 12), rows, f(4, 6)], axis=1)
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1])
    yield case("OneHot", [n(4, 4, 6), np.int64(4), f(2)], constants=[1], axis=1)
    yield case("TopK", [f(4, 12), i(3)], constants=[1], results=2)


def attention() -> Iterator[Case]:
    def cases(opset: int) -> Iterator[Case]:
        t = "Attention"
        yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset)
        yield case(t, [f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)], opset=opset, is_causal=1)
        yield case(t, [f(2, 12, 4, 8), f(2, 6, 6, 8), f(2, 6, 6, 4)], opset=opset)
        yield case(t, [f(2, 6, 4, 8), f(2, 2, 6, 8), f(2, 2, 6, 8), f(2, 1, 4, 6)], opset=opset)
        yield case(t, [f(2, 4, 4, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), f(4, 6)], opset=opset, scale=0.3)
        yield case(t, [f(2, 4, 48), f(2, 6, 16), f(2, 6, 16), f(6, 4, 6)], opset=opset, q_num_heads=6, kv_num_heads=2)
        past = [f(2, 2, 4, 8), f(2, 2, 3, 8), f(2, 2, 3, 8), None, f(2, 2, 2, 8), f(2, 2, 2, 8)]
        yield case(t, past, opset=opset, results=3)

    yield from cases(23)
    yield case("RotaryEmbedding", [f(2, 4, 6, 8), f(6, 4), f(6, 4), n(6, 2, 6)], opset=23)
    yield case("RotaryEmbedding", [f(2, 6, 32), f(2, 6, 4), f(2, 6, 4)], opset=23, num_heads=4)


def recurrent() -> Iterator[Case]:
    yield case("LSTM", [f(3, 6, 4), f(1, 20, 4), f(1, 20, 5), f(1, 40)], hidden_size=5, results=3)
    yield case("GRU", [f(3, 6, 4), f(1, 15, 4), f(1, 15, 5)], hidden_size=5, results=2)
    initial = [f(3, 6, 4), f(2, 5, 4), f(2, 5, 5), f(2, 10), None, f(2, 6, 5)]
    yield case("RNN", initial, hidden_size=5, direction="bidirectional", results=2)


def quantized() -> Iterator[Case]:
    a, b = n(200, 2, 6, 4).astype(np.uint8), n(200, 4, 6).astype(np.uint8)
    yield case("MatMulInteger", [a, b])
    yield case("MatMulInteger", [a, b, np.uint8(7), np.uint8(9)])
    yield case("MatMulInteger", [a[0], b, None, n(9, 6).astype(np.uint8)])
    yield case(
        "ConvInteger",
        [n(9, 2, 4, 5, 5).astype(np.uint8), n(9, 6, 4, 3, 3).astype(np.uint8), np.uint8(3)],
        pads=(1, 1, 1, 1),
    )
    s, z = np.float32(0.1), np.uint8(3)
    yield case("QLinearMatMul", [a[0], s, z, b, s, z, np.float32(4.0), z])
    yield case("DynamicQuantizeLinear", [f(4, 6)], results=3)


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
