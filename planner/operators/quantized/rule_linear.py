"""Operators on quantised tensors beside contractions: conversions, and the arithmetic of `QLinear…`.

The latter dequantise, compute and round again element by element; scales and zero points are one for the tensor.
"""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []

_ONE = "*..."  # a scale or zero point of the whole tensor


@rule("QuantizeLinear", "DequantizeLinear", "com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear")
def _quantize(o: Operator) -> Rule:
    """Scale and zero point are per tensor, per index of `axis`, or per block of it: then whole blocks are split off."""
    scale = o.shape(1)
    names = [f"d{i}" for i in range(o.rank(0))]
    sizes: dict[str, int] = {}
    block = int(o.attribute("block_size", 0))
    if math.prod(scale) == 1:
        parameters = _ONE
    elif len(scale) == 1 and not block:
        parameters = names[o.axis(1)]
    else:
        axis = o.axis(1)
        of_scale = list(names)
        if scale[axis] * block == o.shape(0)[axis]:
            names[axis], of_scale[axis], sizes = "(q u!)", "q", {"u": block}
        else:  # the last block is shorter
            names[axis], of_scale[axis] = f"{names[axis]}!", "*"
        parameters = " ".join(of_scale)
    all_names = " ".join(names)
    linear = o.type.endswith("DequantizeLinear")
    return sharded(
        o,
        f"{all_names}, {parameters}, {parameters} -> {all_names}",
        linear=[(1,)] if linear else [],
        differentiable=(0, 1),
        saved=(0, 1),
        sizes=sizes,
        flops=2.0 * math.prod(o.result()),
    )


@rule("com.microsoft::QLinearAdd", "com.microsoft::QLinearMul")
def _binary(o: Operator) -> Rule:
    """A, its scale and zero point; B, its scale and zero point; those of the result."""
    text = f"d..., {_ONE}, {_ONE}, d..., {_ONE}, {_ONE}, {_ONE}, {_ONE} -> d..."
    return sharded(o, text, flops=8.0 * math.prod(o.result()))


@rule("com.microsoft::QLinearLeakyRelu", "com.microsoft::QLinearSigmoid")
def _unary(o: Operator) -> Rule:
    """Both look their 256 values up in a table."""
    return sharded(o, f"d..., {_ONE}, {_ONE}, {_ONE}, {_ONE} -> d...", flops=2.0 * math.prod(o.result()))


@rule("com.microsoft::QLinearWhere")
def _where(o: Operator) -> Rule:
    """Condition; X, its scale and zero point; Y, its scale and zero point; those of the result."""
    text = f"d..., d..., {_ONE}, {_ONE}, d..., {_ONE}, {_ONE}, {_ONE}, {_ONE} -> d..."
    return sharded(o, text, flops=4.0 * math.prod(o.result()))


@rule("com.microsoft::QLinearSoftmax")
def _softmax(o: Operator) -> Rule:
    """Rounded at the end, and of eight bits: gathering the normalised dimension costs no more than its statistics."""
    rank = o.rank(0)
    coerced = int(o.attribute("opset", 13)) < 13
    axis = o.axis(1 if coerced else -1)
    whole = range(axis, rank) if coerced else (axis,)
    names = " ".join(f"d{i}{'!' if i in whole else ''}" for i in range(rank))
    text = f"{names}, {_ONE}, {_ONE}, {_ONE}, {_ONE} -> {names}"
    return sharded(o, text, kind="normalization", flops=8.0 * math.prod(o.result()))


@rule("com.microsoft::QLinearConcat")
def _concat(o: Operator) -> Rule:
    """Scale and zero point of the result; of each part the tensor, its scale and zero point."""
    rank = len(o.result())
    axis = o.axis(0, rank)
    names = " ".join("*" if i == axis else f"d{i}" for i in range(rank))
    parts = ", ".join([f"{names}, {_ONE}, {_ONE}"] * ((len(o.inputs) - 2) // 3))
    return sharded(o, f"{_ONE}, {_ONE}, {parts} -> {names}", flops=4.0 * math.prod(o.result()))
