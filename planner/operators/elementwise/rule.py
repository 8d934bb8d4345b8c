"""Elementwise operators: every result element depends on the operand elements at its own (broadcast) index."""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.rules.operator import Operator, sharded
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
    # Of ONNX's experimental operators, which ONNX Runtime keeps in its main domain.
    "Affine": Elementwise(differentiable=(0,), flops=2),
    "ParametricSoftplus": _OF_OPERAND,
    "ScaledTanh": _OF_OPERAND,
    "com.microsoft::BiasGelu": Elementwise(differentiable=(0, 1), saved=(0, 1), flops=9),
    "com.microsoft::FastGelu": Elementwise(differentiable=(0, 1), saved=(0, 1), flops=9),
    "com.microsoft::GatedAdd": Elementwise(linear=((0, 1), (0, 2)), differentiable=(0, 1, 2), saved=(1, 2), flops=2),
    "com.microsoft::Gelu": _OF_OPERAND,
    "com.microsoft::MurmurHash3": Elementwise(flops=8),
    "com.microsoft::QuickGelu": _OF_OPERAND,
    "com.microsoft::ScaledSiLU": Elementwise(differentiable=(0,), saved=(0, 1), flops=9),
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


@rule("planner::Detach")
def _detach(o: Operator) -> Rule:
    """The operand, whose gradient does not pass."""
    return sharded(o, "d... -> d...", kind="free", linear=[(0,)], flops=0.0)


@rule("Cast", "CastLike")
def _cast(o: Operator) -> Rule:
    """A conversion between floating-point types is linear up to rounding, where this keeps two digits at least."""
    types = {o.input_types[0], *(t for t in o.output_types if t)}
    precise = types <= {"float16", "bfloat16", "float32", "float64"}
    passes = (0,) if precise else ()
    return sharded(o, "d..., - -> d...", linear=[passes] if precise else [], differentiable=passes)


@rule("BitCast")
def _bit_cast(o: Operator) -> Rule:
    """The same bits in a type of the same width."""
    return sharded(o, "d... -> d...", kind="free", flops=0.0)


@rule("com.microsoft::LinearAttentionGate")
def _linear_attention_gate(o: Operator) -> Rule:
    """a (b t h), its bias and scale per head, b (b t h) to decay and update rate."""
    return sharded(
        o,
        "b t h, h, h, b t h -> b t h, b t h",
        differentiable=(0, 1, 2, 3),
        saved=(0, 1, 2, 3),
        flops=20.0 * math.prod(o.result()),
    )


@rule("ImageScaler")
def _image_scaler(o: Operator) -> Rule:
    """Adds a bias per channel, which is an attribute: channels stay whole."""
    return sharded(o, "n * x... -> n * x...", differentiable=(0,), flops=2.0 * math.prod(o.result()))
