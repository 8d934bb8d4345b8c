"""Shapes of what operators on each element give, where ONNX does not say."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from planner.frontends.facts.shapes import Inferred, Operands, infers, shape_of, shaped_like
from planner.ir import Op

__all__: list[str] = []


@infers("GreaterOrEqual", "LessOrEqual")
def _comparison(op: Op, operands: Operands) -> list[Inferred] | None:
    a, b = shape_of(operands, 0), shape_of(operands, 1)
    if a is None or b is None:
        return [("bool", None)]
    with suppress(ValueError):  # what does not fit is for ONNX to say
        return [("bool", np.broadcast_shapes(a, b))]
    return None


shaped_like(
    (0,),
    "com.microsoft::BiasGelu",
    "com.microsoft::FastGelu",
    "com.microsoft::GatedAdd",
    "com.microsoft::Gelu",
    "com.microsoft::QuickGelu",
    "com.microsoft::ScaledSiLU",
    "planner::Detach",
)
