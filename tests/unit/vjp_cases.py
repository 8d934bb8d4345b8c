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


# Kernels that work in float32 inside, whatever the operands.
_LOOSE: dict[str, Any] = {"epsilon": 1e-2, "tolerance": 2e-3}

# Element by element.
case("Erf", normal(3, 4), **_LOOSE)
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
case("Celu", normal(3, 4), alpha=0.8, **_LOOSE)
case("ThresholdedRelu", apart(3, 4), alpha=0.9)
case("LeakyRelu", apart(3, 4), alpha=0.2)
case("Elu", apart(3, 4), alpha=0.7)
case("PRelu", apart(2, 3, 4), positive(3, 1))
case("HardSigmoid", apart(3, 4), alpha=0.3, beta=0.4)
case("HardSwish", apart(3, 5))
case("Swish", normal(3, 4), opset=24, alpha=1.3)
case("Gelu", normal(3, 4), approximate="none", **_LOOSE)
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
case("Einsum", normal(3, 4, 2), equation="ijk->kji", name="transpose")
case("Einsum", normal(3, 4), normal(4, 2), normal(2, 5), equation="ij,jk,kl->il", name="three")

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
    **_LOOSE,
)
case("ConvTranspose", normal(2, 4, 3, 4), normal(4, 3, 3, 2), group=2, dilations=(1, 2), name="group", **_LOOSE)
case(
    "ConvTranspose",
    normal(1, 2, 3, 3),
    normal(2, 3, 2, 2),
    strides=(3, 2),
    output_padding=(1, 1),
    name="extra",
    **_LOOSE,
)
case("ConvTranspose", normal(1, 2, 5), normal(2, 3, 4), strides=(2,), name="1d", **_LOOSE)
case("MaxPool", apart(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
case("MaxPool", apart(2, 3, 7, 6), kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1, name="ceil")
case("MaxPool", apart(2, 3, 8), kernel_shape=(3,), dilations=(2,), name="1d dilation")
case("AveragePool", normal(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
case("AveragePool", normal(2, 3, 7, 7), kernel_shape=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), count_include_pad=1)
case("AveragePool", normal(2, 3, 6, 7), kernel_shape=(2, 3), auto_pad="SAME_UPPER", strides=(2, 2), name="same")
case("AveragePool", normal(2, 3, 7, 6), kernel_shape=(2, 2), strides=(2, 2), ceil_mode=1, name="ceil")
case("GlobalAveragePool", normal(2, 3, 4, 5))
case("GlobalMaxPool", apart(2, 3, 4, 5))
case("LRN", normal(2, 7, 3, 3), size=5, alpha=0.5, beta=0.75, bias=1.5, **_LOOSE)

# Normalisations.
case("BatchNormalization", normal(2, 3, 4, 4), positive(3), normal(3), normal(3), positive(3))
case("BatchNormalization", normal(2, 3, 4), positive(3), normal(3), normal(3), positive(3), opset=9, name="opset9")
case("BatchNormalization", normal(4, 3, 2), positive(3), normal(3), normal(3), positive(3), outputs=3, training_mode=1,
     skipped=(3, 4), name="training")  # fmt: skip
case("LayerNormalization", normal(2, 3, 4), positive(4), normal(4), **_LOOSE)
case("LayerNormalization", normal(2, 3, 4), positive(3, 4), axis=1, **_LOOSE)
case("RMSNormalization", normal(2, 3, 4), positive(4), opset=23, **_LOOSE)
case("InstanceNormalization", normal(2, 3, 4, 4), positive(3), normal(3))
case("GroupNormalization", normal(2, 6, 4), positive(6), normal(6), opset=21, num_groups=3, **_LOOSE)
case("GroupNormalization", normal(2, 6, 4), positive(3), normal(3), opset=18, num_groups=3, **_LOOSE)
case("Softmax", normal(2, 3, 4), axis=1)
case("Softmax", normal(2, 3, 4), opset=11, axis=1, name="opset11")
case("Softmax", normal(2, 3, 4), opset=9, name="opset9")
case("LogSoftmax", normal(2, 3, 4), axis=-1)
case("LogSoftmax", normal(2, 3, 4), opset=11, axis=2, name="opset11")

# Losses.
for _reduction in ("mean", "sum", "none"):
    case("SoftmaxCrossEntropyLoss", normal(4, 5), ints(0, 4, 2, 2), reduction=_reduction, name=_reduction)
    case("SoftmaxCrossEntropyLoss", normal(2, 5, 3), ints([0, 4, 1], [2, 1, 3]), positive(5), outputs=2, seeded=(0, 1),
         skipped=(2,), ignore_index=1, reduction=_reduction, name=f"{_reduction} weights")  # fmt: skip
    case("NegativeLogLikelihoodLoss", normal(2, 5, 3), ints([0, 4, 1], [2, 1, 3]), positive(5), skipped=(2,),
         ignore_index=1, reduction=_reduction, name=_reduction)  # fmt: skip
case("SoftmaxCrossEntropyLoss", normal(4, 5), ints(0, -100, 2, 2), ignore_index=-100, name="negative ignored")

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
for _exclusive, _reverse in itertools.product((0, 1), repeat=2):
    case("CumSum", normal(2, 3, 4), np.array(1), exclusive=_exclusive, reverse=_reverse)
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
case("Trilu", normal(3, 4), np.array(1))
case("Trilu", normal(3, 4), upper=0)
case("Resize", normal(1, 2, 3, 4), None, np.array([1, 1, 2, 3], dtype=np.float32), mode="nearest",
     coordinate_transformation_mode="asymmetric", nearest_mode="floor", skipped=(2,))  # fmt: skip

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
_ANGLES = normal(9, 2)
_CACHE = (np.cos(_ANGLES), np.sin(_ANGLES))
_AT = ints([0, 3, 8], [1, 1, 2])
case("RotaryEmbedding", normal(2, 5, 3, 4), *_CACHE, _AT, opset=23, skipped=(1, 2))
case("RotaryEmbedding", normal(2, 5, 3, 6), *_CACHE, _AT, opset=23, interleaved=1, rotary_embedding_dim=4,
     skipped=(1, 2), name="interleaved partial")  # fmt: skip
case("RotaryEmbedding", normal(2, 3, 20), *(x[_AT] for x in _CACHE), opset=23, num_heads=5, skipped=(1, 2), name="3d")
