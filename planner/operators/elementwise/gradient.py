"""Element by element: arithmetic with broadcasting, activations, selections."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from planner.kernels.attributes import Array, align, string
from planner.kernels.draws import dropout_mask, global_index
from planner.kernels.gradients import Call, register, unbroadcast
from planner.kernels.pieces import by_elements

__all__ = ["erf", "gelu_gradient", "sigmoid"]

Gradients = list["Array | None"]


def erf(x: Array) -> Array:
    """Error function in float64, by a Chebyshev fit of its complement (absolute error below 1e-15).

    The sum runs in place over pieces that stay in a core's cache: it has thirty passes.
    """
    x = np.asarray(x, dtype=np.float64)
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    z, ty, d, dd = np.empty((4, min(_ERF_PIECE, max(flat.size, 1))))
    for start in range(0, flat.size, _ERF_PIECE):
        piece = slice(start, min(start + _ERF_PIECE, flat.size))
        count = piece.stop - start
        _erf_piece(flat[piece], out[piece], z[:count], ty[:count], d[:count], dd[:count])
    return out.reshape(x.shape)


def _erf_piece(x: Array, out: Array, z: Array, ty: Array, d: Array, dd: Array) -> None:
    """Clenshaw's recurrence d, dd ← ty·d − dd + c, d into `out`; the others are space to work in."""
    np.abs(x, out=z)
    np.add(z, 2.0, out=dd)
    np.divide(2.0, dd, out=out)  # t
    np.multiply(out, 4.0, out=ty)
    ty -= 2.0
    d.fill(0.0)
    dd.fill(0.0)
    for c in _ERFC_CHEBYSHEV[:0:-1]:
        np.subtract(c, dd, out=dd)
        dd += ty * d
        d, dd = dd, d
    ty *= d
    ty += _ERFC_CHEBYSHEV[0]
    ty *= 0.5
    ty -= dd
    z *= z
    ty -= z
    np.exp(ty, out=ty)
    out *= ty  # the complement at |x|
    np.subtract(1.0, out, out=out)
    np.copysign(out, x, out=out)


_ERF_PIECE = 4096


# Press et al., Numerical Recipes, 3rd edition, section 6.2.2 (erfccheb).
_ERFC_CHEBYSHEV = (
    -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
    3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6,
    1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10,
    9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15,
    -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17,
)  # fmt: skip


def sigmoid(x: Array) -> Array:
    """Without overflow for large negative x."""
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))


def _unary(*types: str) -> Callable[[Callable[[Call], Array]], Callable[[Call], Array]]:
    """Register a function that gives the derivative at each element."""

    def add(derivative: Callable[[Call], Array]) -> Callable[[Call], Array]:
        def product(c: Call) -> Gradients:
            return [c.dy * derivative(c)]

        register(*types)(product)
        return derivative

    return add


_DERIVATIVES: dict[str, Callable[[Array, Array], Any]] = {
    "Abs": lambda x, y: np.sign(x),
    "Acos": lambda x, y: -1 / np.sqrt(1 - x * x),
    "Acosh": lambda x, y: 1 / np.sqrt(x * x - 1),
    "Asin": lambda x, y: 1 / np.sqrt(1 - x * x),
    "Asinh": lambda x, y: 1 / np.sqrt(x * x + 1),
    "Atan": lambda x, y: 1 / (1 + x * x),
    "Atanh": lambda x, y: 1 / (1 - x * x),
    "Ceil": lambda x, y: np.zeros_like(x),
    "Cos": lambda x, y: -np.sin(x),
    "Cosh": lambda x, y: np.sinh(x),
    "Erf": lambda x, y: 2 / math.sqrt(math.pi) * np.exp(-x * x),
    "Exp": lambda x, y: y,
    "Floor": lambda x, y: np.zeros_like(x),
    "Log": lambda x, y: 1 / x,
    "Neg": lambda x, y: np.full_like(x, -1),
    "Reciprocal": lambda x, y: -y * y,
    "Relu": lambda x, y: x > 0,
    "Round": lambda x, y: np.zeros_like(x),
    "Sigmoid": lambda x, y: y * (1 - y),
    "Sign": lambda x, y: np.zeros_like(x),
    "Sin": lambda x, y: np.cos(x),
    "Sinh": lambda x, y: np.cosh(x),
    "Softplus": lambda x, y: sigmoid(x),
    "Softsign": lambda x, y: 1 / (1 + np.abs(x)) ** 2,
    "Sqrt": lambda x, y: 0.5 / y,
    "Tan": lambda x, y: 1 + y * y,
    "Tanh": lambda x, y: 1 - y * y,
}


def _register_derivative(kind: str, derivative: Callable[[Array, Array], Any]) -> None:
    def product(c: Call) -> Gradients:
        return [c.dy * derivative(c.x, c.y)]

    register(kind)(product)


for _kind, _derivative in _DERIVATIVES.items():
    _register_derivative(_kind, _derivative)


@_unary("LeakyRelu")
def _leaky_relu(c: Call) -> Array:
    return np.where(c.x >= 0, 1, c.attr("alpha", 0.01)).astype(c.x.dtype)


@_unary("Elu")
def _elu(c: Call) -> Array:
    return np.where(c.x >= 0, 1, c.attr("alpha", 1.0) * np.exp(np.minimum(c.x, 0))).astype(c.x.dtype)


@_unary("Celu")
def _celu(c: Call) -> Array:
    return np.where(c.x >= 0, 1, np.exp(np.minimum(c.x, 0) / c.attr("alpha", 1.0))).astype(c.x.dtype)


@_unary("ThresholdedRelu")
def _thresholded_relu(c: Call) -> Array:
    return (c.x > c.attr("alpha", 1.0)).astype(c.x.dtype)


@_unary("Selu")
def _selu(c: Call) -> Array:
    alpha, gamma = c.attr("alpha", 1.67326319217681884765625), c.attr("gamma", 1.05070102214813232421875)
    return (gamma * np.where(c.x >= 0, 1, alpha * np.exp(np.minimum(c.x, 0)))).astype(c.x.dtype)


@_unary("HardSigmoid")
def _hard_sigmoid(c: Call) -> Array:
    alpha, beta = c.attr("alpha", 0.2), c.attr("beta", 0.5)
    z = alpha * c.x + beta
    return np.where((z > 0) & (z < 1), alpha, 0).astype(c.x.dtype)


@_unary("HardSwish")
def _hard_swish(c: Call) -> Array:
    return np.where(c.x <= -3, 0, np.where(c.x >= 3, 1, c.x / 3 + 0.5)).astype(c.x.dtype)


@_unary("Swish", "com.microsoft::QuickGelu")
def _swish(c: Call) -> Array:
    alpha = c.attr("alpha", 1.702 if c.op.type.endswith("QuickGelu") else 1.0)
    s = sigmoid(alpha * c.x)
    return np.asarray(s * (1 + alpha * c.x * (1 - s)))


@_unary("Mish")
def _mish(c: Call) -> Array:
    t = np.tanh(np.logaddexp(0, c.x))
    return np.asarray(t + c.x * sigmoid(c.x) * (1 - t * t))


def gelu_gradient(x: Array, *, tanh: bool) -> Array:
    """Derivative of Gelu, exact (error function) or in its tanh approximation."""
    return by_elements(_gelu_tanh_slope if tanh else _gelu_slope, x)


def _gelu_tanh_slope(x: Array) -> Array:
    k, square = math.sqrt(2 / math.pi), x * x
    t = np.tanh(k * (x + 0.044715 * square * x))
    return np.asarray(0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * square))


def _gelu_slope(x: Array) -> Array:
    cumulative = 0.5 * (1 + erf(x / math.sqrt(2)))
    return (cumulative + x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)).astype(x.dtype)


@_unary("Gelu", "com.microsoft::Gelu")
def _gelu(c: Call) -> Array:
    return gelu_gradient(c.x, tanh=string(c.attr("approximate"), "none") == "tanh")


@register("com.microsoft::FastGelu", "com.microsoft::BiasGelu")
def _biased_gelu(c: Call) -> Gradients:
    bias = c.maybe(1)
    x = c.x if bias is None else c.x + bias
    dx = c.dy * gelu_gradient(x, tanh=c.op.type.endswith("FastGelu"))
    return [dx, None if bias is None else unbroadcast(dx, bias.shape)]


@register("PRelu")
def _prelu(c: Call) -> Gradients:
    slope = c.operand(1)
    return [c.dy * np.where(c.x >= 0, 1, slope), unbroadcast(c.dy * np.minimum(c.x, 0), slope.shape)]


@register("Clip")
def _clip(c: Call) -> Gradients:
    low, high = c.maybe(1), c.maybe(2)
    lowest = c.attr("min") if low is None else low
    highest = c.attr("max") if high is None else high
    inside = np.ones(c.x.shape, dtype=bool)
    if lowest is not None:
        inside &= c.x >= lowest
    if highest is not None:
        inside &= c.x <= highest
    return [c.dy * inside]


@_unary("Affine")
def _affine(c: Call) -> Array:
    return np.full_like(c.x, c.attr("alpha", 1.0))


@_unary("ImageScaler")
def _image_scaler(c: Call) -> Array:
    return np.full_like(c.x, c.attr("scale", 1.0))


@_unary("ParametricSoftplus")
def _parametric_softplus(c: Call) -> Array:
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    return np.asarray(alpha * beta * sigmoid(beta * c.x))


@_unary("ScaledTanh")
def _scaled_tanh(c: Call) -> Array:
    alpha, beta = c.attr("alpha", 1.0), c.attr("beta", 1.0)
    return np.asarray(alpha * beta * (1 - np.tanh(beta * c.x) ** 2))


@_unary("Shrink")
def _shrink(c: Call) -> Array:
    return (np.abs(c.x) > c.attr("lambd", 0.5)).astype(c.x.dtype)


@register("com.microsoft::GatedAdd")
def _gated_add(c: Call) -> Gradients:
    y, gate = c.operand(1), c.operand(2)
    return [c.dy, c.dy * gate, unbroadcast(c.dy * y, gate.shape)]


@register("com.microsoft::ScaledSiLU")
def _scaled_silu(c: Call) -> Gradients:
    given = c.maybe(1)
    scale = c.attr("alpha", 1.0) if given is None else float(given.reshape(()))
    s = sigmoid(scale * c.x)
    return [c.dy * scale * s * (1 + scale * c.x * (1 - s))]


def _binary(
    kind: str, da: Callable[[Array, Array, Array, Array], Array], db: Callable[[Array, Array, Array, Array], Array]
) -> None:
    """Products of (dy, a, b, y) for both operands."""

    def product(c: Call) -> Gradients:
        a, plain = c.operand(0), c.operand(1)
        b = align(c.op, a, plain)
        return [
            unbroadcast(da(c.dy, a, b, c.y), a.shape) if c.wants(0) else None,
            unbroadcast(db(c.dy, a, b, c.y), b.shape).reshape(plain.shape) if c.wants(1) else None,
        ]

    register(kind)(product)


def _log_where_positive(a: Array) -> Array:
    return np.log(np.where(a > 0, a, 1))


_binary("Add", lambda dy, a, b, y: dy, lambda dy, a, b, y: dy)
_binary("Sub", lambda dy, a, b, y: dy, lambda dy, a, b, y: -dy)
_binary("Mul", lambda dy, a, b, y: dy * b, lambda dy, a, b, y: dy * a)
_binary("Div", lambda dy, a, b, y: dy / b, lambda dy, a, b, y: -dy * y / b)
_binary(
    "Pow",
    lambda dy, a, b, y: dy * np.where(b == 0, 0, b * np.power(a, np.where(b == 0, 1, b) - 1)).astype(a.dtype),
    lambda dy, a, b, y: dy * y * _log_where_positive(a),
)


@register("Sum", "Mean")
def _sum(c: Call) -> Gradients:
    dy = c.dy / len(c.inputs) if c.op.type == "Mean" else c.dy
    return [None if x is None or not c.wants(i) else unbroadcast(dy, x.shape) for i, x in enumerate(c.inputs)]


@register("Max", "Min")
def _extremum(c: Call) -> Gradients:
    """Operands that tie share the gradient equally."""
    chosen = [x == c.y for x in c.inputs if x is not None]
    share = c.dy / sum(h.astype(c.dy.dtype) for h in chosen)
    return [unbroadcast(share * (x == c.y), x.shape) if x is not None else None for x in c.inputs]


@register("Where")
def _where(c: Call) -> Gradients:
    condition, a, b = c.operand(0), c.operand(1), c.operand(2)
    zero = np.zeros((), dtype=c.dy.dtype)
    return [
        None,
        unbroadcast(np.where(condition, c.dy, zero), a.shape) if c.wants(1) else None,
        unbroadcast(np.where(condition, zero, c.dy), b.shape) if c.wants(2) else None,
    ]


@register("Identity", "Cast", "CastLike")
def _identity(c: Call) -> Gradients:
    return [c.dy]


@register("Dropout")
def _dropout(c: Call) -> Gradients:
    """The mask is read where the operator returned one, else drawn again."""
    ratio = _dropout_ratio(c)
    if ratio == 0:
        return [c.dy]
    mask = c.outputs[1] if len(c.outputs) > 1 else None
    if mask is None:
        mask = dropout_mask(c.op, ratio, global_index(c.dy.shape, (0,) * c.dy.ndim, c.dy.shape))
    return [c.dy * mask / (1 - ratio or 1)]


def _dropout_ratio(c: Call) -> float:
    """Of the elements that are dropped; operators before version 12 state it as an attribute."""
    if c.op.opset < 12:
        return 0.0 if c.op.opset >= 7 or c.attr("is_test", 0) else float(c.attr("ratio", 0.5))
    ratio, training = c.maybe(1), c.maybe(2)
    if training is None or not np.any(training):
        return 0.0
    return 0.5 if ratio is None else float(ratio.reshape(()))


@register("com.microsoft::Scale")
def _scale(c: Call) -> Gradients:
    factor = c.operand(1)
    return [c.dy / factor if c.attr("scale_down", 0) else c.dy * factor]
