"""Elementwise operators: every result element depends on the operand elements at its own (broadcast) index."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.rules.operator import KeepWholeError, Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__ = ["Elementwise"]

_EVERY = -1  # in the table: all operands, of operators that take any number


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A table entry; numbers are operand indices.

    linear          groups of operands that may arrive as pending sums
    differentiable  operands with a gradient
    saved, saved_results   what the backward reads
    flops           per result element; transcendental functions count as 8, as in XLA's cost analysis
                    of their polynomial expansions to within a factor of two
    """

    linear: tuple[tuple[int, ...], ...] = ()
    differentiable: tuple[int, ...] = ()
    saved: tuple[int, ...] = ()
    saved_results: tuple[int, ...] = ()
    flops: float = 1.0


_FIXED = Elementwise()  # comparisons, logic, rounding: no gradient
_OF_RESULT = Elementwise(differentiable=(0,), saved_results=(0,), flops=8)
_OF_OPERAND = Elementwise(differentiable=(0,), saved=(0,), flops=8)
_PIECEWISE = Elementwise(differentiable=(0,), saved=(0,), flops=2)

_TABLE: dict[str, Elementwise] = {
    "Abs": _PIECEWISE,
    "Acos": _OF_OPERAND,
    "Acosh": _OF_OPERAND,
    "Add": Elementwise(linear=((0, 1),), differentiable=(0, 1)),
    "And": _FIXED,
    "Asin": _OF_OPERAND,
    "Asinh": _OF_OPERAND,
    "Atan": _OF_OPERAND,
    "Atanh": _OF_OPERAND,
    "BitShift": _FIXED,
    "BitwiseAnd": _FIXED,
    "BitwiseNot": _FIXED,
    "BitwiseOr": _FIXED,
    "BitwiseXor": _FIXED,
    "Ceil": _FIXED,
    "Celu": _OF_OPERAND,
    "Clip": _PIECEWISE,
    "Cos": _OF_OPERAND,
    "Cosh": _OF_OPERAND,
    "Div": Elementwise(linear=((0,),), differentiable=(0, 1), saved=(0, 1)),
    "Elu": _OF_OPERAND,
    "Equal": _FIXED,
    "Erf": _OF_OPERAND,
    "Exp": _OF_RESULT,
    "Floor": _FIXED,
    "Gelu": _OF_OPERAND,
    "Greater": _FIXED,
    "GreaterOrEqual": _FIXED,
    "HardSigmoid": _PIECEWISE,
    "HardSwish": _PIECEWISE,
    "IsInf": _FIXED,
    "IsNaN": _FIXED,
    "LeakyRelu": _PIECEWISE,
    "Less": _FIXED,
    "LessOrEqual": _FIXED,
    "Log": _OF_OPERAND,
    "Max": Elementwise(differentiable=(_EVERY,), saved=(_EVERY,)),
    "Mean": Elementwise(linear=((_EVERY,),), differentiable=(_EVERY,)),
    "Min": Elementwise(differentiable=(_EVERY,), saved=(_EVERY,)),
    "Mish": _OF_OPERAND,
    "Mod": _FIXED,
    "Mul": Elementwise(linear=((0,), (1,)), differentiable=(0, 1), saved=(0, 1)),
    "Neg": Elementwise(linear=((0,),), differentiable=(0,)),
    "Not": _FIXED,
    "Or": _FIXED,
    "PRelu": Elementwise(differentiable=(0, 1), saved=(0, 1), flops=2),
    "Pow": Elementwise(differentiable=(0, 1), saved=(0, 1), saved_results=(0,), flops=8),
    "Reciprocal": Elementwise(differentiable=(0,), saved_results=(0,), flops=1),
    "Relu": Elementwise(differentiable=(0,), saved_results=(0,)),
    "Round": _FIXED,
    "Selu": _OF_OPERAND,
    "Shrink": _PIECEWISE,
    "Sigmoid": _OF_RESULT,
    "Sign": _FIXED,
    "Sin": _OF_OPERAND,
    "Sinh": _OF_OPERAND,
    "Softplus": _OF_OPERAND,
    "Softsign": _PIECEWISE,
    "Sqrt": Elementwise(differentiable=(0,), saved_results=(0,), flops=2),
    "Sub": Elementwise(linear=((0, 1),), differentiable=(0, 1)),
    "Sum": Elementwise(linear=((_EVERY,),), differentiable=(_EVERY,)),
    "Swish": _OF_OPERAND,
    "Tan": _OF_OPERAND,
    "Tanh": _OF_RESULT,
    "ThresholdedRelu": _PIECEWISE,
    "Where": Elementwise(linear=((1, 2),), differentiable=(1, 2), saved=(0,)),
    "Xor": _FIXED,
    "com.microsoft::BiasGelu": Elementwise(differentiable=(0, 1), saved=(0, 1), flops=9),
    "com.microsoft::FastGelu": Elementwise(differentiable=(0, 1), saved=(0, 1), flops=9),
    "com.microsoft::Gelu": _OF_OPERAND,
    "com.microsoft::QuickGelu": _OF_OPERAND,
}


def _elementwise(o: Operator) -> Rule:
    entry = _TABLE[o.type]
    count = len(o.inputs)

    def those(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(range(count)) if _EVERY in indices else indices

    return sharded(
        o,
        ", ".join(["d..."] * count) + " -> d...",
        linear=[those(g) for g in entry.linear],
        differentiable=those(entry.differentiable),
        saved=those(entry.saved),
        saved_results=entry.saved_results,
        flops=entry.flops * math.prod(o.result()),
    )


for _type in _TABLE:
    rule(_type)(_elementwise)


@rule("Identity")
def _identity(o: Operator) -> Rule:
    return sharded(o, "d... -> d...", kind="free", linear=[(0,)], differentiable=(0,), flops=0.0)


@rule("Cast", "CastLike")
def _cast(o: Operator) -> Rule:
    """A conversion between floating-point types is linear up to rounding."""
    return sharded(o, "d..., - -> d...", linear=[(0,)], differentiable=(0,) if o.makes_float else ())


@rule("Dropout")
def _dropout(o: Operator) -> Rule:
    """Inference, where it is the identity.  In training ranks that hold replicas would have to draw alike."""
    if _drops(o):
        raise KeepWholeError("it draws random numbers, which must be the same on ranks that hold replicas")
    return sharded(o, "d..., -, - -> d..., d...", linear=[(0,)] if not o.yields(1) else [], differentiable=(0,))


def _drops(o: Operator) -> bool:
    if o.opset < 7:
        return not o.attribute("is_test", 0)
    if not o.has(2):
        return False
    ratio, training = o.value(1), o.value(2)
    return not (training is not None and not np.any(training)) and not (ratio is not None and not np.any(ratio))


@rule("QuantizeLinear", "DequantizeLinear")
def _quantize(o: Operator) -> Rule:
    """Scale and zero point are per tensor, per index of `axis`, or per block of it (then that axis is whole)."""
    scale = o.shape(1)
    names = [f"d{i}" for i in range(o.rank(0))]
    if math.prod(scale) == 1:
        parameters = "*..."
    elif len(scale) == 1 and not o.attribute("block_size", 0):
        parameters = names[o.axis(1)]
    else:
        axis = o.axis(1)
        parameters = " ".join("*" if i == axis else f for i, f in enumerate(names))
        names[axis] += "!"
    all_names = " ".join(names)
    linear = o.type == "DequantizeLinear"
    return sharded(
        o,
        f"{all_names}, {parameters}, {parameters} -> {all_names}",
        linear=[(1,)] if linear else [],
        differentiable=(0, 1),
        saved=(0, 1),
        flops=2.0 * math.prod(o.result()),
    )
