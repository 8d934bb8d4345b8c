"""One operator each, with operands in float64 that stay away from kinks and ties."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.ir import Op

__all__ = ["CASES", "Case"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """`outputs` results, of which those in `seeded` receive a gradient."""

    name: str
    op: Op
    inputs: tuple[Array | None, ...]
    seeded: tuple[int, ...] = (0,)
    epsilon: float = 1e-5
    tolerance: float = 1e-6
    skipped: tuple[int, ...] = field(default=())  # float operands that have no gradient by definition


CASES: list[Case] = []
_RNG = np.random.default_rng(20240229)


def normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


def positive(*shape: int) -> Array:
    return 0.5 + _RNG.random(shape)


def apart(*shape: int, centre: float = 0.0, step: float = 0.37) -> Array:
    """Distinct values, none within 0.1 of an integer multiple of the step from the centre."""
    n = int(np.prod(shape))
    return ((_RNG.permutation(n) - n // 2 + 0.41) * step + centre).reshape(shape)


def ints(*values: Any) -> Array:
    return np.array(values, dtype=np.int64)


def case(kind: str, *inputs: Array | None, opset: int = 20, outputs: int = 1, name: str = "", **options: Any) -> None:
    fixed = {k: options.pop(k) for k in ("seeded", "epsilon", "tolerance", "skipped") if k in options}
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    op = Op("y0", kind, names, tuple(f"y{i}" for i in range(outputs)), options, opset)
    CASES.append(Case(f"{kind.rpartition('::')[2]}-{name or len(CASES)}", op, inputs, **fixed))


# Element by element.
case("Erf", normal(3, 4))
for _kind in [
    "Abs",
    "Neg",
    "Exp",
    "Tanh",
    "Sigmoid",
    "Softplus",
    "Softsign",
    "Sin",
    "Cos",
    "Sinh",
    "Cosh",
    "Atan",
    "Asinh",
    "Elu",
    "Selu",
    "Identity",
]:
    case(_kind, normal(3, 4))
for _kind in ["Sqrt", "Reciprocal", "Log"]:
    case(_kind, positive(3, 4))
for _kind in ["Asin", "Acos", "Atanh", "Tan"]:
    case(_kind, 0.5 * np.tanh(normal(3, 4)))
case("Acosh", positive(3) + 1)
case("Mish", normal(3, 4))
case("Relu", apart(3, 4))
case("Celu", normal(3, 4), alpha=0.8)
case("ThresholdedRelu", apart(3, 4), alpha=0.9)
case("LeakyRelu", apart(3, 4), alpha=0.2)
case("Elu", apart(3, 4), alpha=0.7)
case("PRelu", apart(2, 3, 4), positive(3, 1))
case("HardSigmoid", apart(3, 4), alpha=0.3, beta=0.4)
case("HardSwish", apart(3, 5))
case("Swish", normal(3, 4), opset=24, alpha=1.3)
case("Gelu", normal(3, 4), approximate="none")
case("Gelu", normal(3, 4), approximate="tanh")
case("Clip", apart(3, 4), np.array(-0.6), np.array(0.9), skipped=(1, 2))
case("Clip", apart(3, 4), opset=6, min=-0.6, max=0.9)
case("Cast", normal(3), to=11)
case("Floor", apart(3))
for _kind in ["Add", "Sub", "Mul"]:
    case(_kind, normal(2, 3, 4), normal(3, 1))
    case(_kind, normal(4), normal(2, 3, 4))
case("Add", normal(2, 3, 4), normal(3), opset=6, broadcast=1, axis=1, name="opset6")
case("Div", normal(2, 3), positive(2, 1))
case("Pow", positive(2, 3), normal(3))
case("Pow", apart(2, 3), np.array(2.0), skipped=(1,))
case("Pow", apart(2, 3), np.array(3.0), skipped=(1,))
case("Sum", normal(2, 3), normal(3), normal(2, 1))
case("Mean", normal(2, 3), normal(3))
case("Max", apart(3, 4), apart(4, centre=0.1), apart(3, 1, centre=0.2))
case("Min", apart(3, 4), apart(4, centre=0.1))
case("Where", _RNG.random((3, 4)) < 0.5, normal(4), normal(3, 1))
case("Dropout", normal(3, 4), np.array(0.3), skipped=(1,))
case("Dropout", normal(3, 4), opset=7, ratio=0.5, name="opset7")
case("Dropout", normal(3, 4), np.array(0.3), np.array(True), skipped=(1,), name="drops")
case("Dropout", normal(3, 4), None, np.array(True), outputs=2, seed=3, name="mask")
case("Affine", normal(3, 4), alpha=2.0, beta=0.5, opset=1)
case("ImageScaler", normal(2, 3, 2, 2), scale=2.0, bias=(0.1, 0.2, 0.3), opset=1)
case("ParametricSoftplus", normal(3, 4), alpha=2.0, beta=0.5, opset=1)
case("ScaledTanh", normal(3, 4), alpha=2.0, beta=0.5, opset=1)
case("Shrink", apart(3, 4), lambd=0.4, bias=0.1)
case("com.microsoft::GatedAdd", normal(3, 4), normal(3, 4), normal(3, 1), opset=1)
case("com.microsoft::ScaledSiLU", normal(3, 4), alpha=1.3, opset=1)
case("com.microsoft::ScaledSiLU", normal(3, 4), np.array(0.7), opset=1, skipped=(1,), name="given")

# Contractions.
for _a, _b in [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (6, 4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)),
    ((2, 3, 4), (4,)), ((4,), (2, 4, 5)), ((3, 4), (2, 4, 5)),
]:  # fmt: skip
    case("MatMul", normal(*_a), normal(*_b), name=f"{_a}{_b}")
for _ta, _tb in itertools.product((0, 1), repeat=2):
    _shapes = ((4, 3) if _ta else (3, 4)), ((5, 4) if _tb else (4, 5))
    case("Gemm", normal(*_shapes[0]), normal(*_shapes[1]), normal(5), transA=_ta, transB=_tb, alpha=0.7, beta=1.3)
case("Gemm", normal(3, 4), normal(4, 5), normal(3, 1))
case("Gemm", normal(3, 4), normal(4, 5))
case("Einsum", normal(2, 3, 4), normal(4, 5), equation="...ij,jk->...ik", name="ellipsis")
case("Einsum", normal(2, 3, 4), normal(3, 4, 5), equation="bij,ijk->bk", name="two")
case("Einsum", normal(3, 4), normal(4, 2), equation="ij,jk", name="implicit")
case("Einsum", normal(3, 4), equation="ij->i", name="sum")
case("Einsum", normal(3, 3), equation="ii->i", name="diagonal")
case("Einsum", normal(3, 3), equation="ii", name="trace")
case("Einsum", normal(3, 3, 4), normal(3, 4), equation="iij,ij->j", name="diagonal of many")
case("Einsum", normal(2, 3, 3), normal(2, 5), equation="bii,bj->bj", name="trace of many")
case("Einsum", normal(3, 4, 2), equation="ijk->kji", name="transpose")
case("Einsum", normal(3, 4), normal(4, 2), normal(2, 5), equation="ij,jk,kl->il", name="three")
_EXPERTS = "planner::ExpertMatMul"
case(_EXPERTS, normal(5, 3), normal(4, 2, 3), ints(1, 3, 1, 0, -1), normal(4, 2), transB=1, name="bias")
case(_EXPERTS, normal(2, 1, 3), normal(4, 3, 2), ints([1, 0, 0], [3, 3, -4]), transB=0, name="broadcast")

# Convolutions and pools.
case("Conv", normal(2, 4, 7, 6), normal(6, 4, 3, 3), normal(6), pads=(1, 1, 1, 1), name="pads")
case("Conv", normal(2, 4, 7, 6), normal(6, 2, 3, 2), group=2, strides=(2, 1), pads=(0, 1, 2, 0), name="group")
case("Conv", normal(2, 3, 9, 8), normal(4, 3, 3, 2), dilations=(2, 3), name="dilation")
case("Conv", normal(2, 4, 6, 6), normal(8, 1, 3, 3), group=4, auto_pad="SAME_UPPER", strides=(2, 2), name="depthwise")
case("Conv", normal(2, 3, 7, 7), normal(4, 3, 2, 2), auto_pad="SAME_LOWER", name="same lower")
case("Conv", normal(2, 3, 7, 7), normal(4, 3, 2, 2), auto_pad="VALID", opset=7, name="valid")
case("Conv", normal(2, 3, 7, 7), normal(4, 3, 1, 1), strides=(2, 2), name="1x1 strided")
case("Conv", normal(2, 3, 5, 5), normal(4, 3, 1, 1), name="1x1")
case("Conv", normal(2, 3, 9), normal(4, 3, 3), strides=(2,), pads=(1, 1), name="1d")
case("Conv", normal(1, 2, 4, 5, 4), normal(3, 2, 2, 3, 2), name="3d")
case(
    "ConvTranspose",
    normal(2, 4, 3, 4),
    normal(4, 3, 3, 3),
    normal(3),
    strides=(2, 2),
    pads=(1, 1, 1, 1),
    name="pads",
)
case("ConvTranspose", normal(2, 4, 3, 4), normal(4, 3, 3, 2), group=2, dilations=(1, 2), name="group")
case(
    "ConvTranspose",
    normal(1, 2, 3, 3),
    normal(2, 3, 2, 2),
    strides=(3, 2),
    output_padding=(1, 1),
    name="extra",
)
case("ConvTranspose", normal(1, 2, 5), normal(2, 3, 4), strides=(2,), name="1d")
case("MaxPool", apart(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
case("MaxPool", apart(2, 3, 7, 6), kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1, name="ceil")
case("MaxPool", apart(2, 3, 8), kernel_shape=(3,), dilations=(2,), name="1d dilation")
case("AveragePool", normal(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
case("AveragePool", normal(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), count_include_pad=1)
case("AveragePool", normal(2, 3, 6, 7), kernel_shape=(2, 3), auto_pad="SAME_UPPER", strides=(2, 2), name="same")
case("AveragePool", normal(2, 3, 7, 6), kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1, name="ceil")
case("LpPool", apart(2, 3, 7, 6), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 0, 1, 1), p=3)
case("LpPool", apart(2, 3, 8), kernel_shape=(3,), p=2, name="1d")
case("MaxUnpool", normal(1, 2, 2, 2), ints([[[1, 3], [8, 14]], [[17, 18], [24, 31]]]).reshape(1, 2, 2, 2),
     kernel_shape=(2, 2), strides=(2, 2))  # fmt: skip
case(
    "MaxUnpool",
    normal(1, 1, 2, 2),
    ints([[[[1, 3], [3, 6]]]]),
    ints(1, 1, 3, 3),
    kernel_shape=(2, 2),
    name="same place",
)
case("GlobalAveragePool", normal(2, 3, 4, 5))
case("GlobalMaxPool", apart(2, 3, 4, 5))
case("LRN", normal(2, 7, 3, 3), size=5, alpha=0.5, beta=0.75, bias=1.5)

# Normalisations.
case("BatchNormalization", normal(2, 3, 4, 4), positive(3), normal(3), normal(3), positive(3))
case("BatchNormalization", normal(2, 3, 4), positive(3), normal(3), normal(3), positive(3), opset=9, name="opset9")
case("BatchNormalization", normal(4, 3, 2), positive(3), normal(3), normal(3), positive(3), outputs=3, training_mode=1,
     skipped=(3, 4), name="training")  # fmt: skip
case("LayerNormalization", normal(2, 3, 4), positive(4), normal(4))
case("LayerNormalization", normal(2, 3, 4), positive(3, 4), axis=1)
case("RMSNormalization", normal(2, 3, 4), positive(4), opset=23)
case("InstanceNormalization", normal(2, 3, 4, 4), positive(3), normal(3))
case("GroupNormalization", normal(2, 6, 4), positive(6), normal(6), opset=21, num_groups=3)
case("GroupNormalization", normal(2, 6, 4), positive(3), normal(3), opset=18, num_groups=3)
case("LpNormalization", normal(3, 4), p=1)
case("LpNormalization", normal(2, 3, 4), axis=1)
case("MeanVarianceNormalization", normal(2, 3, 4, 2))
case("MeanVarianceNormalization", normal(3, 4), axes=(-1,))
case("com.microsoft::BatchNormInternal", normal(4, 3, 2), positive(3), normal(3), normal(3), positive(3), opset=1,
     skipped=(3, 4))  # fmt: skip
for _last in (0, 1):
    case("com.microsoft::GroupNorm", normal(2, 6, 5, 6), positive(6), normal(6), opset=1, groups=3, activation=_last,
         channels_last=_last)  # fmt: skip
case("Softmax", normal(2, 3, 4), axis=1)
case("Softmax", normal(2, 3, 4), opset=11, axis=1, name="opset11")
case("Softmax", normal(2, 3, 4), opset=9, name="opset9")
case("LogSoftmax", normal(2, 3, 4), axis=-1)
case("LogSoftmax", normal(2, 3, 4), opset=11, axis=2, name="opset11")
case("com.microsoft::BiasSoftmax", normal(2, 3, 4), normal(1, 3, 4), opset=1, axis=1)
case("com.microsoft::BiasSoftmax", normal(2, 3, 4), normal(2, 1, 4), opset=1, axis=2)

# Losses.
for _reduction in ("mean", "sum", "none"):
    case("SoftmaxCrossEntropyLoss", normal(4, 5), ints(0, 4, 2, 2), reduction=_reduction, name=_reduction)
    case("SoftmaxCrossEntropyLoss", normal(2, 5, 3), ints([0, 4, 1], [2, 1, 3]), positive(5), outputs=2, seeded=(0, 1),
         skipped=(2,), ignore_index=1, reduction=_reduction, name=f"{_reduction} weights")  # fmt: skip
    case("NegativeLogLikelihoodLoss", normal(2, 5, 3), ints([0, 4, 1], [2, 1, 3]), positive(5), skipped=(2,),
         ignore_index=1, reduction=_reduction, name=_reduction)  # fmt: skip
case("SoftmaxCrossEntropyLoss", normal(4, 5), ints(0, -100, 2, 2), ignore_index=-100, name="negative ignored")
case("com.microsoft::SoftmaxCrossEntropyLossInternal", normal(4, 5), ints(0, -100, 2, 2), positive(5), np.array(-100),
     opset=1, skipped=(2,))  # fmt: skip

# Reductions.
for _kind in [
    "ReduceSum",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMin",
]:
    case(_kind, apart(2, 3, 4), ints(0, 2), name="axes")
    case(_kind, apart(2, 3, 4), opset=11, axes=(-1,), keepdims=0, name="opset11")
    case(_kind, apart(2, 3), keepdims=0, name="all")
case("ReduceSum", apart(2, 3), noop_with_empty_axes=1, name="noop")
case("ReduceLogSum", positive(2, 3), ints(1))
case("ReduceProd", positive(2, 3), ints(1))
case("ReduceProd", np.array([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0]]), ints(1), name="zeros")
for _exclusive, _reverse in itertools.product((0, 1), repeat=2):
    case("CumSum", normal(2, 3, 4), np.array(1), exclusive=_exclusive, reverse=_reverse)
    case("CumProd", np.array([[1.5, 0.0, 2.0, -1.2]]), np.array(-1), opset=26, exclusive=_exclusive, reverse=_reverse)
case("Det", normal(2, 3, 3))
case("com.microsoft::Inverse", normal(2, 3, 3) + 4 * np.eye(3), opset=1)

# Recurrent layers: X, W, R, B, lengths, states, peepholes.
for _kind, _gates in (("LSTM", 4), ("GRU", 3), ("RNN", 1)):
    _one = (normal(3, 2, 4), normal(1, _gates * 5, 4), normal(1, _gates * 5, 5))
    _two = (normal(3, 2, 4), normal(2, _gates * 5, 4), normal(2, _gates * 5, 5), normal(2, _gates * 10))
    _cell = (normal(2, 2, 5),) if _kind == "LSTM" else ()
    _count = 3 if _kind == "LSTM" else 2
    _results: dict[str, Any] = {"hidden_size": 5, "outputs": _count, "seeded": tuple(range(_count))}
    case(_kind, *_one, name="forward", **_results)
    case(_kind, *_one, name="reverse", direction="reverse", **_results)
    case(_kind, *_two, np.array([3, 1], np.int32), normal(2, 2, 5), *_cell, name="lengths", direction="bidirectional",
         **_results)  # fmt: skip
    case(_kind, _two[0].transpose(1, 0, 2), *_two[1:], None, normal(2, 2, 5), *_cell, name="batch first", layout=1,
         direction="bidirectional", **_results)  # fmt: skip
_bare = (normal(3, 2, 4), normal(1, 20, 4), normal(1, 20, 5))
_lstm: dict[str, Any] = {"hidden_size": 5, "outputs": 3, "seeded": (0, 1, 2)}
case("LSTM", *_bare, None, None, None, None, normal(1, 15), name="peepholes", **_lstm)
case("LSTM", *_bare, name="coupled", input_forget=1, **_lstm)
case("GRU", normal(3, 2, 4), normal(1, 15, 4), normal(1, 15, 5), normal(1, 30), name="reset after", hidden_size=5,
     outputs=2, seeded=(0, 1), linear_before_reset=1)  # fmt: skip
case("RNN", normal(3, 2, 4), normal(2, 5, 4), normal(2, 5, 5), name="activations", hidden_size=5, outputs=2,
     seeded=(0, 1), direction="bidirectional", activations=("ScaledTanh", "Softsign"), activation_alpha=(1.3,),
     activation_beta=(0.7,))  # fmt: skip
case("TopK", apart(3, 6), ints(2), axis=1, outputs=2)
case("TopK", apart(4, 3), ints(3), axis=0, largest=0, outputs=2)

# Layout.
case("Reshape", normal(2, 6), ints(3, -1))
case("Reshape", normal(2, 6), ints(0, 2, 3))
case("Flatten", normal(2, 3, 4), axis=2)
case("Squeeze", normal(2, 1, 3, 1), ints(1, -1))
case("Squeeze", normal(2, 1, 3), opset=11, axes=(1,), name="opset11")
case("Unsqueeze", normal(2, 3), ints(0, -1))
case("Unsqueeze", normal(2, 3), opset=11, axes=(1,), name="opset11")
case("Transpose", normal(2, 3, 4), perm=(2, 0, 1))
case("Transpose", normal(2, 3))
case("Expand", normal(3, 1), ints(2, 1, 4))
case("Concat", normal(2, 3), normal(2, 1), normal(2, 2), axis=-1)
case("Split", normal(2, 6), ints(1, 3, 2), axis=1, outputs=3, seeded=(0, 2))
case("Split", normal(6, 2), opset=11, split=(4, 2), axis=0, outputs=2, seeded=(0, 1), name="opset11")
case("Split", normal(6, 2), opset=18, num_outputs=3, outputs=3, seeded=(1,), name="opset18")
case("Slice", normal(4, 5, 6), ints(1, -4), ints(4, 100), ints(0, 2), ints(2, 1))
case("Slice", normal(4, 5), ints(-1), ints(-100), ints(1), ints(-2), name="backwards")
case("Slice", normal(4, 5), opset=9, starts=(1, 0), ends=(3, -1), axes=(0, 1), name="opset9")
case("Pad", normal(2, 3), ints(1, 0, 0, 2))
case("Pad", normal(2, 4), ints(0, 2, 0, 1), mode="reflect", name="reflect")
case("Pad", normal(2, 3), ints(2, 1), None, ints(1), mode="edge", name="edge axes")
case("Pad", normal(3, 4), ints(-1, 0, 0, 2), name="crop")
case("Pad", normal(2, 3), opset=2, pads=(1, 1, 0, 0), name="opset2")
case("Tile", normal(2, 3), ints(2, 3))
case("DepthToSpace", normal(2, 8, 2, 3), blocksize=2)
case("DepthToSpace", normal(2, 8, 2, 3), blocksize=2, mode="CRD")
case("SpaceToDepth", normal(2, 2, 4, 6), blocksize=2)
case("SpaceToDepth", normal(2, 3, 4, 6), blocksize=2, mode="CRD", opset=28)
case("CenterCropPad", normal(5, 4, 3), ints(2, 7), axes=(0, 1))
case("CenterCropPad", normal(3, 4), ints(6, 4), name="pad")
case("ReverseSequence", normal(4, 3, 2), ints(1, 4, 3))
case("ReverseSequence", normal(3, 2, 4), ints(1, 4, 3), batch_axis=0, time_axis=2, name="batch first")
case("Trilu", normal(3, 4), np.array(1))
case("Trilu", normal(3, 4), upper=0)
case("Resize", normal(1, 2, 3, 4), None, np.array([1, 1, 2, 3], dtype=np.float32), mode="nearest",
     coordinate_transformation_mode="asymmetric", nearest_mode="floor", skipped=(2,))  # fmt: skip
for _mode in ("linear", "cubic"):
    case(
        "Resize",
        normal(1, 2, 5, 4),
        None,
        np.array([1, 1, 1.6, 2], dtype=np.float32),
        mode=_mode,
        skipped=(2,),
        name=_mode,
    )
    case("Resize", normal(1, 2, 9, 7), None, None, ints(1, 2, 4, 3), mode=_mode, antialias=1,
         name=f"{_mode} antialias")  # fmt: skip
case("Resize", normal(1, 2, 5, 4), None, None, ints(3, 6), mode="nearest", axes=(2, 3), name="nearest sizes")

# Sampling.  Places keep away from the borders of cells.
case("AffineGrid", normal(2, 2, 3), ints(2, 1, 3, 4))
case("AffineGrid", normal(1, 3, 4), ints(1, 1, 3, 4, 2), align_corners=1, name="volume")
case("CausalConvWithState", normal(2, 3, 5), normal(3, 1, 4), normal(3), normal(2, 3, 3), opset=27, outputs=2,
     seeded=(0, 1))  # fmt: skip
case("CausalConvWithState", normal(2, 3, 5), normal(3, 1, 4), opset=27, outputs=2, activation="silu", name="silu")
case("Col2Im", normal(2, 8, 12), ints(4, 5), ints(2, 2))
case("Col2Im", normal(1, 12, 4), ints(4, 5), ints(2, 3), strides=(2, 2), pads=(0, 1, 0, 0), dilations=(1, 1))
_PLACES = _RNG.integers(-1, 4, (2, 3, 2, 2)) + _RNG.uniform(0.2, 0.8, (2, 3, 2, 2))  # in elements
for _padding, _corners in itertools.product(("zeros", "border", "reflection"), (0, 1)):
    _grid = _PLACES / 1.5 - 1 if _corners else (_PLACES + 0.5) / 2 - 1
    for _mode in ("linear", "cubic"):
        case("GridSample", normal(2, 2, 4, 4), _grid, mode=_mode, padding_mode=_padding, align_corners=_corners,
             name=f"{_mode} {_padding} {_corners}")  # fmt: skip
case("GridSample", normal(1, 2, 4, 4), np.array([[[[-0.9, 0.3], [0.1, 1.4]]]]), mode="nearest", skipped=(1,),
     name="nearest")  # fmt: skip
_REGIONS = np.array([[0.3, 0.6, 4.1, 3.3], [1.2, 0.1, 5.9, 4.7], [2.0, 2.0, 2.3, 2.4]])
for _mode in ("half_pixel", "output_half_pixel"):
    case("RoiAlign", normal(2, 3, 5, 6), _REGIONS, ints(1, 0, 1), output_height=2, output_width=3, skipped=(1,),
         coordinate_transformation_mode=_mode, name=_mode)  # fmt: skip
_SHIFTS = _RNG.uniform(0.2, 0.8, (2, 8, 3, 3)) + _RNG.integers(-1, 2, (2, 8, 3, 3))
case("DeformConv", normal(2, 2, 4, 4), normal(3, 2, 2, 2), _SHIFTS, normal(3), normal(2, 4, 3, 3), opset=22)
case("DeformConv", normal(2, 4, 4, 4), normal(4, 2, 2, 2), np.concatenate([_SHIFTS, -_SHIFTS], axis=1), opset=22,
     group=2, offset_group=2, name="groups")  # fmt: skip

# Indexing.
case("Gather", normal(5, 3), ints([0, 4], [4, -1]))
case("Gather", normal(2, 5, 3), ints(1, 1, 0), axis=1)
case("Gather", normal(2, 5), np.array(3), axis=1, name="scalar")
case("GatherElements", normal(3, 4), ints([0, 0, -1], [3, 1, 1]), axis=1)
case("GatherND", normal(3, 4, 2), ints([0, 1], [2, 3], [0, 1]))
case("GatherND", normal(2, 3, 4), ints([[1], [0]], [[2], [2]]), batch_dims=1)
case("ScatterND", normal(5, 2), ints([1], [3]), normal(2, 2))
case("ScatterND", normal(5, 2), ints([1], [1]), normal(2, 2), reduction="add", name="add")
case("ScatterElements", normal(3, 4), ints([0, 1], [3, 2]), normal(2, 2), axis=1)
case("ScatterElements", normal(3, 4), ints([0, 0], [1, 1]), normal(2, 2), axis=0, reduction="add", name="add")
for _reduction in ("mul", "max", "min"):
    _apart = apart(20)
    case("ScatterElements", _apart[:12].reshape(3, 4), ints([0, 0], [0, 1]), _apart[12:16].reshape(2, 2), axis=0,
         reduction=_reduction, name=_reduction)  # fmt: skip
    case("ScatterND", _apart[:8].reshape(4, 2), ints([1], [1], [-1]), _apart[8:14].reshape(3, 2), reduction=_reduction,
         name=_reduction)  # fmt: skip
case("ScatterND", np.array([2.0, 0.0, 3.0]), ints([0], [0], [1], [2]), np.array([0.0, 4.0, 5.0, 0.0]), reduction="mul",
     name="mul zeros")  # fmt: skip
case("TensorScatter", normal(2, 3, 5, 2), normal(2, 3, 2, 2), ints(0, 3), opset=24)
case("TensorScatter", normal(2, 5, 2), normal(2, 3, 2), ints(4, 1), opset=24, axis=1, mode="circular")

# Attention.
_QKV = (normal(2, 4, 3, 5), normal(2, 2, 6, 5), normal(2, 2, 6, 4))
case("Attention", *_QKV, opset=23, name="grouped")
case("Attention", normal(2, 4, 4, 5), normal(2, 4, 4, 5), normal(2, 4, 4, 5), opset=23, is_causal=1, name="causal")
case("Attention", *_QKV, normal(3, 6), opset=23, scale=0.3, softcap=1.5, name="mask softcap")
case("Attention", *_QKV, normal(2, 4, 3, 6), opset=23, name="mask per head")
case("Attention", *_QKV, _RNG.random((2, 1, 3, 6)) < 0.7, opset=23, name="boolean mask")
case("Attention", normal(2, 3, 8), normal(2, 5, 4), normal(2, 5, 6), opset=23, q_num_heads=4, kv_num_heads=2, name="3d")
case(
    "Attention", *_QKV, None, normal(2, 2, 2, 5), normal(2, 2, 2, 4), opset=23, outputs=3, seeded=(0, 1, 2), name="past"
)
case("Attention", *_QKV, None, None, None, ints(4, 2), opset=24, is_causal=1, name="padded cache")
case("Attention", *_QKV, opset=25, left_window_size=2, right_window_size=1, name="window")
for _mode in (0, 1, 3):
    case("Attention", *_QKV, _RNG.random((2, 1, 3, 6)) < 0.7, opset=23, outputs=4, seeded=(0, 3), softcap=1.5,
         qk_matmul_output_mode=_mode, name=f"scores {_mode}")  # fmt: skip
case("Attention", *_QKV, normal(3, 6), opset=23, outputs=4, seeded=(0, 3), qk_matmul_output_mode=2, name="scores 2")
case("ai.onnx.preview::FlexAttention", *_QKV, opset=1, scale=0.3)
_MULTI_HEAD = "com.microsoft::MultiHeadAttention"
_FLAT = (normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 4))
case(_MULTI_HEAD, *_FLAT, normal(20), ints([1, 1, 1, 0, 0], [1] * 5), normal(1, 2, 3, 5), opset=1, num_heads=2)
case(_MULTI_HEAD, normal(2, 3, 2, 3, 4), None, None, normal(24), opset=1, num_heads=2, unidirectional=1, name="packed")
case(_MULTI_HEAD, normal(2, 3, 8), normal(2, 5, 2, 2, 4), None, normal(24), opset=1, num_heads=2, name="packed keys")
case(_MULTI_HEAD, normal(2, 3, 8), normal(2, 2, 5, 4), normal(2, 2, 5, 4), normal(24), opset=1, num_heads=2, name="4d")
_PAST = (normal(2, 2, 2, 4), normal(2, 2, 2, 4))
case(_MULTI_HEAD, *(normal(2, 3, 8) for _ in range(3)), None, None, None, *_PAST, opset=1, num_heads=2, outputs=3,
     seeded=(0, 1, 2), name="past")  # fmt: skip
_LINEAR: dict[str, Any] = {"opset": 27, "outputs": 2, "seeded": (0, 1), "q_num_heads": 4, "kv_num_heads": 2}
_STEPS = (normal(2, 4, 12), normal(2, 4, 6), normal(2, 4, 8))
case("LinearAttention", *_STEPS, update_rule="linear", name="linear", **_LINEAR)
case("LinearAttention", *_STEPS, normal(2, 2, 3, 4), -positive(2, 4, 6), update_rule="gated", name="gated", **_LINEAR)
case("LinearAttention", *_STEPS, None, None, positive(2, 4, 1), update_rule="delta", name="delta", **_LINEAR)
_GATES = (-positive(2, 4, 2), positive(2, 4, 2))
case("LinearAttention", *_STEPS, normal(2, 2, 3, 4), *_GATES, name="gated delta", **_LINEAR)
case("SwiGLU", normal(3, 4), normal(3, 4), opset=28, alpha=1.3)
_ANGLES = normal(9, 2)
_CACHE = (np.cos(_ANGLES), np.sin(_ANGLES))
_AT = ints([0, 3, 8], [1, 1, 2])
case("RotaryEmbedding", normal(2, 5, 3, 4), *_CACHE, _AT, opset=23, skipped=(1, 2))
case("RotaryEmbedding", normal(2, 5, 3, 6), *_CACHE, _AT, opset=23, interleaved=1, rotary_embedding_dim=4,
     skipped=(1, 2), name="interleaved partial")  # fmt: skip
case("RotaryEmbedding", normal(2, 3, 20), *(x[_AT] for x in _CACHE), opset=23, num_heads=5, skipped=(1, 2), name="3d")

# Of one module each.  Places keep away from the borders of cells.
_SHIFTS = _RNG.uniform(0.2, 0.8, (2, 24, 1, 3, 3)) + _RNG.integers(-1, 2, (2, 24, 1, 3, 3))
_VOLUME = (normal(2, 2, 2, 4, 4), normal(3, 2, 2, 2, 2), _SHIFTS)
case("planner::DeformConv3D", *_VOLUME, normal(3), normal(2, 8, 1, 3, 3), opset=1)
case("planner::DeformConv3D", normal(2, 4, 1, 4, 4), normal(4, 2, 1, 2, 2), _SHIFTS, opset=1, group=2, offset_group=2,
     name="groups")  # fmt: skip
case("planner::SegmentSum", normal(6, 3), ints(0, 3, 1, 0, -1, 4), opset=1, num_segments=4)
case("planner::SwiGLUMatMul", normal(2, 3, 4), normal(4, 5), normal(4, 5), opset=1)
