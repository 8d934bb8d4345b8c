"""Element by element: arithmetic, comparisons, activations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import helper

from planner.ir import Op
from planner.kernels.attributes import Array, align, string
from planner.kernels.local import in_double
from planner.kernels.pieces import by_elements
from planner.operators.elementwise.gradient import erf

__all__ = ["ACTIVATIONS", "activate", "gelu", "logistic"]

Operands = Sequence["Array | None"]
Results = Sequence["Array | None"]
Kernel = Callable[[Op, Operands], "Results | None"]

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)  # alpha, gamma: ONNX's defaults


def logistic(x: Array) -> Array:
    """1/(1 + e⁻ˣ), to full relative accuracy on both sides; e⁻ˣ may overflow to ∞, whose inverse is the limit."""
    with np.errstate(over="ignore"):
        y = np.exp(-x)
    y += 1
    return np.asarray(np.reciprocal(y, out=y))


def gelu(x: Array, *, tanh: bool) -> Array:
    return by_elements(_gelu_tanh if tanh else _gelu_erf, x)


def _gelu_tanh(x: Array) -> Array:
    inner = x * x
    inner *= 0.044715
    inner += 1
    inner *= x
    inner *= math.sqrt(2 / math.pi)
    return _half_of(x, np.tanh(inner, out=inner))


def _gelu_erf(x: Array) -> Array:
    return _half_of(x, erf(x * math.sqrt(0.5)))


def _half_of(x: Array, y: Array) -> Array:
    """x/2·(1 + y), in the memory of y."""
    y += 1
    y *= x
    y *= 0.5
    return y


def _softplus(x: Array) -> Array:
    y = np.log1p(np.exp(-np.abs(x)))
    y += np.maximum(x, 0)
    return np.asarray(y)


def _number(op: Op, name: str, default: float) -> float:
    return float(op.attributes.get(name, default))


def _leaky(op: Op, x: Array) -> Array:
    return np.where(x < 0, _number(op, "alpha", 0.01) * x, x)


def _elu(op: Op, x: Array) -> Array:
    return np.where(x > 0, x, _number(op, "alpha", 1.0) * np.expm1(np.minimum(x, 0)))


def _celu(op: Op, x: Array) -> Array:
    alpha = _number(op, "alpha", 1.0)
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha))


def _selu(op: Op, x: Array) -> Array:
    alpha, gamma = _number(op, "alpha", _SELU[0]), _number(op, "gamma", _SELU[1])
    return np.asarray(gamma * np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))))


def _hard_sigmoid(op: Op, x: Array) -> Array:
    return np.clip(_number(op, "alpha", 0.2) * x + _number(op, "beta", 0.5), 0, 1)


def _shrink(op: Op, x: Array) -> Array:
    limit, bias = _number(op, "lambd", 0.5), _number(op, "bias", 0.0)
    return np.where(x < -limit, x + bias, np.where(x > limit, x - bias, np.zeros_like(x)))


def _swish(op: Op, x: Array) -> Array:
    alpha = _number(op, "alpha", 1.0)
    return by_elements(lambda part: part * logistic(alpha * part), x)


def _quick_gelu(op: Op, x: Array) -> Array:
    alpha = _number(op, "alpha", 1.702)
    return by_elements(lambda part: part * logistic(alpha * part), x)


def _is_infinite(op: Op, x: Array) -> Array:
    up, down = op.attributes.get("detect_positive", 1), op.attributes.get("detect_negative", 1)
    return (np.isposinf(x) if up else np.zeros(x.shape, bool)) | (np.isneginf(x) if down else np.zeros(x.shape, bool))


def _plain(function: Callable[[Array], Array]) -> Callable[[Op, Array], Array]:
    return lambda op, x: function(x)


# Functions of one operand and the operator's attributes.
ACTIVATIONS: Mapping[str, Callable[[Op, Array], Array]] = {
    "Abs": _plain(np.abs),
    "Acos": _plain(np.arccos),
    "Acosh": _plain(np.arccosh),
    "Affine": lambda op, x: _number(op, "alpha", 1.0) * x + _number(op, "beta", 0.0),
    "Asin": _plain(np.arcsin),
    "Asinh": _plain(np.arcsinh),
    "Atan": _plain(np.arctan),
    "Atanh": _plain(np.arctanh),
    "Ceil": _plain(np.ceil),
    "Celu": _celu,
    "Cos": _plain(np.cos),
    "Cosh": _plain(np.cosh),
    "Elu": _elu,
    "Erf": _plain(erf),
    "Exp": _plain(np.exp),
    "Floor": _plain(np.floor),
    "Gelu": lambda op, x: gelu(x, tanh=string(op.attributes.get("approximate"), "none") == "tanh"),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda op, x: x * np.clip(x / 6 + 0.5, 0, 1),
    "IsInf": _is_infinite,
    "IsNaN": _plain(np.isnan),
    "LeakyRelu": _leaky,
    "Log": _plain(np.log),
    "Mish": lambda op, x: x * np.tanh(_softplus(x)),
    "Neg": _plain(np.negative),
    "Reciprocal": _plain(np.reciprocal),
    "Relu": lambda op, x: np.maximum(x, 0),
    "Round": _plain(np.rint),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda op, x: by_elements(logistic, x),
    "Sign": _plain(np.sign),
    "Sin": _plain(np.sin),
    "Sinh": _plain(np.sinh),
    "Softplus": _plain(_softplus),
    "Softsign": lambda op, x: x / (1 + np.abs(x)),
    "Sqrt": _plain(np.sqrt),
    "Swish": _swish,
    "Tan": _plain(np.tan),
    "Tanh": _plain(np.tanh),
    "ThresholdedRelu": lambda op, x: np.where(x > _number(op, "alpha", 1.0), x, 0.0),
    "com.microsoft::Gelu": lambda op, x: gelu(x, tanh=False),
    "com.microsoft::QuickGelu": _quick_gelu,
}


def activate(name: str, x: Array, parameters: Mapping[str, float]) -> Array:
    """The activation that a fused operator names, with its parameters."""
    if name == "Clip":
        return np.clip(x, parameters.get("min", -math.inf), parameters.get("max", math.inf))
    return ACTIVATIONS[name](Op("activation", name, ("x",), ("y",), parameters, 20), x)


def _one(function: Callable[[Op, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        x = inputs[0]
        if x is None:
            return None
        # Arithmetic on arrays without dimensions gives numpy scalars, on which steps in place fail.
        return [function(op, x) if x.ndim else function(op, x.reshape(1)).reshape(())]

    return kernel


def _two(function: Callable[[Array, Array], Array]) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        a, b = inputs
        if a is None or b is None or a.dtype != b.dtype:
            return None
        return [function(a, align(op, a, b))]

    return kernel


def _many(function: Callable[[Array, Array], Array], *, mean: bool = False) -> Kernel:
    def kernel(op: Op, inputs: Operands) -> Results | None:
        parts = [x for x in inputs if x is not None]
        total = parts[0]
        for x in parts[1:]:
            total = function(total, x)
        return [total / len(parts) if mean else total]

    return kernel


def _pow(op: Op, inputs: Operands) -> Results | None:
    a, b = inputs
    if a is None or b is None or a.dtype != np.float64:
        return None
    b = align(op, a, b)
    if b.size == 1:
        exponent = float(b.reshape(()))
        shape = np.broadcast_shapes(a.shape, b.shape)
        if exponent == 2:
            return [np.square(a).reshape(shape)]
        if exponent == 3:  # numpy's own power of a number takes fifty times as long
            y = np.multiply(a, a)
            return [np.multiply(y, a).reshape(shape)]
        if exponent == 0.5:
            return [np.sqrt(a).reshape(shape)]
    return [np.power(a, b.astype(np.float64, copy=False))]


def _where(op: Op, inputs: Operands) -> Results | None:
    condition, a, b = inputs
    return None if condition is None or a is None or b is None else [np.where(condition, a, b)]


def _clip(op: Op, inputs: Operands) -> Results | None:
    x, low, high = (*inputs, None, None)[:3]
    if x is None:
        return None
    lowest, highest = (op.attributes.get(n) if v is None else v for n, v in (("min", low), ("max", high)))
    y = x if lowest is None else np.maximum(x, lowest)
    return [y if highest is None else np.minimum(y, highest)]


def _prelu(op: Op, inputs: Operands) -> Results | None:
    x, slope = inputs
    return None if x is None or slope is None else [np.where(x < 0, x * slope, x)]


def _cast(op: Op, inputs: Operands) -> Results | None:
    """To integers and booleans as C does; what is out of range is undefined in ONNX as well."""
    x, like = (*inputs, None)[:2]
    if x is None:
        return None
    to = helper.tensor_dtype_to_np_dtype(int(op.attributes["to"])) if like is None else like.dtype
    if to.isbuiltin != 1 or to.kind not in "fiub" or x.dtype.kind not in "fiub":
        return None
    return [x.astype(to, copy=False)]


def _biased_gelu(op: Op, inputs: Operands) -> Results | None:
    x, bias = (*inputs, None)[:2]
    if x is None:
        return None
    whole = x if bias is None else x + bias
    return [gelu(whole.reshape(-1), tanh=op.type.endswith("FastGelu")).reshape(whole.shape)]


in_double(
    {
        **{name: _one(function) for name, function in ACTIVATIONS.items()},
        "Cast": _cast,
        "CastLike": _cast,
        "Clip": _clip,
        "Equal": _two(np.equal),
        "Greater": _two(np.greater),
        "GreaterOrEqual": _two(np.greater_equal),
        "Less": _two(np.less),
        "LessOrEqual": _two(np.less_equal),
        "Max": _many(np.maximum),
        "Mean": _many(np.add, mean=True),
        "Min": _many(np.minimum),
        "PRelu": _prelu,
        "Pow": _pow,
        "Sum": _many(np.add),
        "Where": _where,
        "com.microsoft::BiasGelu": _biased_gelu,
        "com.microsoft::FastGelu": _biased_gelu,
    }
)
