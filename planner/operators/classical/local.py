"""Classical models, steps of optimizers, and operators that know single precision alone.

Trees and support vectors stay with ONNX Runtime, which adds up the file's float32 weights in float32: the sum of a row
is the same whatever the rows beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from onnx import TensorProto, helper

from planner.ir import Op
from planner.kernels.attributes import Array, string
from planner.kernels.local import in_double
from planner.kernels.session import run_node, without

__all__: list[str] = []

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]


def _transformed(op: Op, scores: Array) -> Array | None:
    match string(op.attributes.get("post_transform"), "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return np.asarray(1 / (1 + np.exp(-scores)))
        case "SOFTMAX":
            e = np.exp(scores - scores.max(axis=1, keepdims=True))
            return np.asarray(e / e.sum(axis=1, keepdims=True))
    return None


def _linear_classifier(op: Op, inputs: Operands) -> Results | None:
    """Of several classes; the two of a single row of coefficients are ONNX Runtime's."""
    x, labels = np.asarray(inputs[0]), op.attributes.get("classlabels_ints")
    weights = np.asarray(op.attributes["coefficients"], dtype=np.float64).reshape(-1, x.shape[-1])
    if labels is None or len(labels) != len(weights) or len(weights) < 2:
        return _widened(op, inputs)
    scores = x @ weights.T + np.asarray(op.attributes.get("intercepts") or 0.0, dtype=np.float64)
    shown = _transformed(op, scores)
    return _widened(op, inputs) if shown is None else [np.asarray(labels)[scores.argmax(axis=1)], shown]


def _normalizer(op: Op, inputs: Operands) -> Results:
    """Rows by their largest element, the sum of their absolute values, or their length; zero rows stay."""
    x = np.asarray(inputs[0])
    match string(op.attributes.get("norm"), "MAX"):
        case "L1":
            norm = np.abs(x).sum(axis=-1, keepdims=True)
        case "L2":
            norm = np.sqrt(np.square(x).sum(axis=-1, keepdims=True))
        case _:
            norm = x.max(axis=-1, keepdims=True)
    return [np.divide(x, norm, out=x.copy(), where=norm != 0)]


def _scaler(op: Op, inputs: Operands) -> Results:
    offset, scale = (np.asarray(op.attributes.get(k) or d, np.float64) for k, d in (("offset", 0.0), ("scale", 1.0)))
    return [(np.asarray(inputs[0]) - offset) * scale]


def _feature_vectorizer(op: Op, inputs: Operands) -> Results:
    widths = op.attributes["inputdimensions"]
    parts = [np.asarray(x).reshape(len(np.asarray(x)), -1)[:, :w] for x, w in zip(inputs, widths, strict=True)]
    return [np.concatenate(parts, axis=1)]


def _zip_map(op: Op, inputs: Operands) -> Results:
    """One map from labels to numbers per row, as an array of Python's dictionaries."""
    labels = op.attributes.get("classlabels_int64s") or op.attributes.get("classlabels_strings") or ()
    x = np.asarray(inputs[0])
    found = np.empty(len(x), dtype=object)
    found[:] = [dict(zip(labels, row.tolist(), strict=True)) for row in x.reshape(len(x), -1)]
    return [found]


def _widened(op: Op, inputs: Operands) -> Results:
    """The operator's own float32 results."""
    return [y.astype(np.float64) if y is not None and y.dtype == np.float32 else y for y in run_node(op, inputs)]


def _as_stated(op: Op, inputs: Operands) -> Results | None:
    """Results in double precision where `planner.verify.double` says so; they are numbers of the file, or counts."""
    plain = without(op, "dtype")
    if op.attributes.get("dtype") != TensorProto.DOUBLE:
        return None
    return _widened(plain, inputs)


def _bit_cast(op: Op, inputs: Operands) -> Results | None:
    """Between integers of 32 bits and the float32 for which a float64 stands."""
    x, to = np.asarray(inputs[0]), helper.tensor_dtype_to_np_dtype(int(op.attributes["to"]))
    if x.dtype == np.float64 and to.itemsize == 4:
        return [x.astype(np.float32).view(to)]
    if to == np.float64 and x.itemsize == 4:
        return [x.view(np.float32).astype(np.float64)]
    return None


def _optimizer(step: Callable[[Op, float, int, list[Array]], list[Array]], states: int) -> Kernel:
    """Learning rate and count, then parameters, gradients and states; results are new parameters, and new states."""

    def kernel(op: Op, inputs: Operands) -> Results:
        rate, count = (float(np.asarray(v).reshape(())) for v in inputs[:2])
        rest = [np.asarray(v) for v in inputs[2:]]
        n = len(rest) // (2 + states)
        found = [step(op, rate, int(count), rest[i::n]) for i in range(n)]
        return [new for kind in zip(*found, strict=True) for new in kind]

    return kernel


def _number(op: Op, name: str, default: float) -> float:
    return float(op.attributes.get(name, default))


def _adam(op: Op, rate: float, count: int, values: list[Array]) -> list[Array]:
    x, g, v, h = values
    alpha, beta = _number(op, "alpha", 0.9), _number(op, "beta", 0.999)
    if count > 0:
        rate *= np.sqrt(1 - beta**count) / (1 - alpha**count)
    g = g + _number(op, "norm_coefficient", 0.0) * x
    v, h = alpha * v + (1 - alpha) * g, beta * h + (1 - beta) * g * g
    x = x - rate * v / (np.sqrt(h) + _number(op, "epsilon", 1e-6))
    return [(1 - _number(op, "norm_coefficient_post", 0.0)) * x, v, h]


def _adagrad(op: Op, rate: float, count: int, values: list[Array]) -> list[Array]:
    x, g, h = values
    rate /= 1 + count * _number(op, "decay_factor", 0.0)
    g = g + _number(op, "norm_coefficient", 0.0) * x
    h = h + g * g
    return [x - rate * g / (np.sqrt(h) + _number(op, "epsilon", 1e-6)), h]


def _momentum(op: Op, rate: float, count: int, values: list[Array]) -> list[Array]:
    x, g, v = values
    alpha, beta = _number(op, "alpha", 0.0), _number(op, "beta", 0.0)
    g = g + _number(op, "norm_coefficient", 0.0) * x
    v = alpha * v + (beta if count > 0 else 1.0) * g
    moved = g + alpha * v if string(op.attributes.get("mode")) == "nesterov" else v
    return [x - rate * moved, v]


in_double(
    {
        "BitCast": _bit_cast,
        "TfIdfVectorizer": _as_stated,
        "ai.onnx.ml::FeatureVectorizer": _feature_vectorizer,
        "ai.onnx.ml::LabelEncoder": _as_stated,
        "ai.onnx.ml::LinearClassifier": _linear_classifier,
        "ai.onnx.ml::Normalizer": _normalizer,
        "ai.onnx.ml::OneHotEncoder": _as_stated,
        "ai.onnx.ml::Scaler": _scaler,
        "ai.onnx.ml::SVMClassifier": _widened,
        "ai.onnx.ml::SVMRegressor": _widened,
        "ai.onnx.ml::TreeEnsemble": _widened,
        "ai.onnx.ml::TreeEnsembleClassifier": _widened,
        "ai.onnx.ml::TreeEnsembleRegressor": _widened,
        "ai.onnx.ml::ZipMap": _zip_map,
        "ai.onnx.preview.training::Adagrad": _optimizer(_adagrad, 1),
        "ai.onnx.preview.training::Adam": _optimizer(_adam, 2),
        "ai.onnx.preview.training::Momentum": _optimizer(_momentum, 1),
    },
    always=("BitCast", "TfIdfVectorizer", "ai.onnx.ml::LabelEncoder", "ai.onnx.ml::OneHotEncoder"),
)
