"""Elementwise operators with a torch function of the same meaning."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from onnx import helper
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__ = ["element_type"]

_ALIGNS = 7  # operator set since which operands broadcast as numpy's

_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Acosh": torch.acosh,
    "Asin": torch.asin,
    "Asinh": torch.asinh,
    "Atan": torch.atan,
    "Atanh": torch.atanh,
    "BitwiseNot": torch.bitwise_not,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "HardSwish": functional.hardswish,
    "Identity": lambda x: x,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": functional.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
    "planner::Detach": torch.Tensor.detach,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Div": lambda a, b: torch.div(a, b) if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
    "Xor": torch.logical_xor,
}

_SELU = (1.67326319217681884765625, 1.05070102214813232421875)  # alpha, gamma: ONNX's defaults


def _swish(x: Tensor, alpha: float) -> Tensor:
    """PyTorch's own, where there is one, which keeps its operand alone for the backward pass."""
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


# Functions of one operand and of numbers among the attributes, by their names and defaults.
_STEERED: dict[str, tuple[dict[str, float], Callable[..., Tensor]]] = {
    "Affine": ({"alpha": 1.0, "beta": 0.0}, lambda x, alpha, beta: alpha * x + beta),
    "Celu": ({"alpha": 1.0}, lambda x, alpha: functional.celu(x, alpha)),
    "Elu": ({"alpha": 1.0}, lambda x, alpha: functional.elu(x, alpha)),
    "HardSigmoid": ({"alpha": 0.2, "beta": 0.5}, lambda x, alpha, beta: torch.clamp(alpha * x + beta, 0, 1)),
    "LeakyRelu": ({"alpha": 0.01}, lambda x, alpha: functional.leaky_relu(x, alpha)),
    "Selu": (
        {"alpha": _SELU[0], "gamma": _SELU[1]},
        lambda x, alpha, gamma: gamma * functional.elu(x, alpha),
    ),
    "Shrink": (
        {"lambd": 0.5, "bias": 0.0},
        lambda x, lambd, bias: torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, torch.zeros_like(x))),
    ),
    "Swish": ({"alpha": 1.0}, _swish),
    "ThresholdedRelu": ({"alpha": 1.0}, lambda x, alpha: torch.where(x > alpha, x, torch.zeros_like(x))),
    "com.microsoft::QuickGelu": ({"alpha": 1.702}, _swish),
}


@operator(*_UNARY)
def _unary(c: Call) -> Tensor:
    return _UNARY[c.op.type](c.x)


@operator(*_STEERED)
def _steered(c: Call) -> Tensor:
    defaults, function = _STEERED[c.op.type]
    return function(c.x, **{name: float(c.attr(name, default)) for name, default in defaults.items()})


def _aligned(c: Call, index: int = 1) -> Tensor:
    """An operand as numpy would broadcast it: operators before version 7 align its first dimension by an attribute."""
    b, axis = c.operand(index), c.attr("axis")
    if not 0 < c.op.opset < _ALIGNS or axis is None or not c.attr("broadcast"):
        return b
    return b.reshape(*b.shape, *(1,) * (c.x.ndim - int(axis) % c.x.ndim - b.ndim))


@operator(*_BINARY)
def _binary(c: Call) -> Tensor:
    return _BINARY[c.op.type](c.x, _aligned(c))


@operator("Mod")
def _mod(c: Call) -> Tensor:
    function = torch.fmod if c.attr("fmod", 0) else torch.remainder
    found: Tensor = function(c.x, c.operand(1))
    return found


@operator("BitShift")
def _bit_shift(c: Call) -> Tensor:
    function = torch.bitwise_left_shift if c.attr("direction") == "LEFT" else torch.bitwise_right_shift
    found: Tensor = function(c.x, c.operand(1))
    return found


@operator("Max", "Mean", "Min", "Sum")
def _of_many(c: Call) -> Tensor:
    function = {"Max": torch.maximum, "Min": torch.minimum}.get(c.op.type, torch.add)
    found: Tensor = reduce(function, (x for x in c.inputs if x is not None))
    return found / len(c.inputs) if c.op.type == "Mean" else found


@operator("Clip")
def _clip(c: Call) -> Tensor:
    """Where the lower bound is larger than the upper one, the upper one holds."""
    low, high = c.number(1, "min"), c.number(2, "max")
    return torch.clamp(c.x, low, high) if low is not None or high is not None else c.x


@operator("PRelu")
def _prelu(c: Call) -> Tensor:
    return torch.where(c.x < 0, c.x * c.operand(1), c.x)


@operator("IsInf")
def _is_infinite(c: Call) -> Tensor:
    up, down = c.attr("detect_positive", 1), c.attr("detect_negative", 1)
    if up and down:
        return torch.isinf(c.x)
    return torch.isposinf(c.x) if up else torch.isneginf(c.x) if down else torch.zeros_like(c.x, dtype=torch.bool)


def element_type(number: int) -> torch.dtype | None:
    """torch's name of an ONNX element type; None where it has none."""
    found = getattr(torch, helper.tensor_dtype_to_np_dtype(number).name, None)
    return found if isinstance(found, torch.dtype) else None


@operator("Cast", "CastLike")
def _cast(c: Call) -> Tensor | None:
    """What is out of the range of an integer is undefined in ONNX as well; of eight bits and fewer, numbers saturate in
    ways of their own."""
    to = c.operand(1).dtype if c.op.type == "CastLike" else element_type(int(c.attr("to")))
    if to is None or (to.is_floating_point and to.itemsize < 2):
        return None
    return c.x.to(to)


@operator("Gelu", "com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::Gelu")
def _gelu(c: Call) -> Tensor:
    x = c.x if c.maybe(1) is None else c.x + c.operand(1)
    fast = c.op.type.endswith("FastGelu")
    return functional.gelu(x, approximate="tanh" if fast else c.attr("approximate", "none"))


@operator("Where")
def _where(c: Call) -> Tensor:
    return torch.where(c.x, c.operand(1), c.operand(2))


@operator("Pow")
def _pow(c: Call) -> Tensor:
    """The result has the type of the base."""
    exponent, known = _aligned(c), c.value(1)
    if known is not None and known.size == 1 and not exponent.requires_grad and exponent.ndim <= c.x.ndim:
        number = known.reshape(()).item()
        return torch.square(c.x) if number == 2 else torch.pow(c.x, number).to(c.x.dtype)
    exponent = exponent.to(c.x.dtype) if c.x.is_floating_point() else exponent
    if not exponent.requires_grad:
        return torch.pow(c.x, exponent).to(c.x.dtype)
    y = torch.pow(c.x, exponent.detach())
    # Where the base is not positive, the exponent has no gradient.
    slope = torch.where(c.x > 0, y * torch.log(torch.where(c.x > 0, c.x, 1)), 0).detach()
    return y + (exponent - exponent.detach()) * slope
