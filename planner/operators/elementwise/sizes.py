"""How operators on each element carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import carries, shaped_like_first
from planner.frontends.resized.broadcasting import broadcast_factors
from planner.frontends.resized.carry import Carrier
from planner.ir import Op

__all__: list[str] = []


@carries(
    "Add",
    "And",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Or",
    "PRelu",
    "Pow",
    "Sub",
    "Sum",
    "Where",
    "Xor",
)
def _broadcast(c: Carrier, op: Op) -> None:
    o = op.outputs[0]
    operands = [t for t in op.inputs if t]
    c.factors[o] = broadcast_factors(c, op, operands, len(c.before(o)), 0, o)


shaped_like_first(
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "BitwiseNot",
    "Cast",
    "CastLike",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
)
shaped_like_first(
    "com.microsoft::BiasGelu", "com.microsoft::FastGelu", "com.microsoft::Gelu", "com.microsoft::QuickGelu"
)
