"""Which operators always draw random numbers, and shapes of what random operators give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.chance import draws
from planner.frontends.facts.shapes import UNKNOWN, Inferred, Operands, first_of, infers
from planner.ir import Op

__all__: list[str] = []

draws("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


@infers("com.microsoft::BiasDropout")
def _bias_dropout(op: Op, operands: Operands) -> list[Inferred]:
    x = first_of(operands)
    return [UNKNOWN] if x is None else [x, ("bool", x[1])]


@infers("Dropout")
def _dropout(op: Op, operands: Operands) -> list[Inferred]:
    x = operands[0]
    return [UNKNOWN] if x is None else [(x.dtype, x.shape), ("bool", x.shape)]
