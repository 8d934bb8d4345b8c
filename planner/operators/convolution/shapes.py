"""Shapes of what convolutions give, where ONNX does not say, and how their work is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import as_onnx, infers
from planner.frontends.steps.draft import split_type
from planner.ir import Op

__all__: list[str] = []


infers("com.microsoft::FusedConv")(as_onnx("Conv"))


@counts("Conv", "ConvInteger", "QLinearConv")
def _work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    at = 3 if split_type(op.type)[1] == "QLinearConv" else 1
    weight = shapes[at] if len(shapes) > at else None
    return 0 if weight is None or out is None else 2 * math.prod(out) * math.prod(weight[1:])


@counts("ConvTranspose")
def _transposed_work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    x, weight = shapes[:2]
    return 0 if x is None or weight is None else 2 * math.prod(x) * math.prod(weight[1:])
