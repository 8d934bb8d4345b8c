"""Elementwise operators with a torch function of the same meaning."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from planner.runtime.registry import Call, operator

__all__: list[str] = []


_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "Abs": torch.abs,
    "Cos": torch.cos,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Identity": lambda x: x,
    "Log": torch.log,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": functional.relu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Softplus": functional.softplus,
    "Sqrt": torch.sqrt,
    "Tanh": torch.tanh,
}

_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Div": torch.div,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Sub": torch.sub,
}


@operator(*_UNARY)
def _unary(c: Call) -> Tensor:
    return _UNARY[c.op.type](c.x)


@operator(*_BINARY)
def _binary(c: Call) -> Tensor | None:
    """Operators before version 7 align operands by an attribute; whole numbers divide as in C: left to others."""
    whole = c.op.type == "Div" and not c.x.is_floating_point()
    return None if 0 < c.op.opset < 7 or whole else _BINARY[c.op.type](c.x, c.operand(1))


@operator("Gelu", "com.microsoft::Gelu", "com.microsoft::FastGelu")
def _gelu(c: Call) -> Tensor:
    x = c.x if c.maybe(1) is None else c.x + c.operand(1)
    fast = c.op.type.endswith("FastGelu")
    return functional.gelu(x, approximate="tanh" if fast else c.attr("approximate", "none"))


@operator("Where")
def _where(c: Call) -> Tensor:
    return torch.where(c.x, c.operand(1), c.operand(2))


@operator("Pow")
def _pow(c: Call) -> Tensor | None:
    exponent = c.operand(1)
    if exponent.requires_grad or exponent.numel() != 1 or not c.x.is_floating_point():
        return None
    return torch.square(c.x) if exponent.item() == 2 else torch.pow(c.x, exponent)
