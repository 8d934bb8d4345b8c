"""Shapes of what mixtures of experts give, where ONNX does not say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import Inferred, Operands, infers, shaped_like
from planner.ir import Op

__all__: list[str] = []


@infers("planner::ExpertMatMul")
def _expert_matmul(op: Op, operands: Operands) -> list[Inferred]:
    x, w, indices = operands[:3]
    if x is None or w is None or indices is None or x.shape is None or w.shape is None or indices.shape is None:
        return [(None if x is None else x.dtype, None)]
    tokens = np.broadcast_shapes(x.shape[:-1], indices.shape[: len(x.shape) - 1])
    return [(x.dtype, (*tokens, w.shape[1 if op.attributes["transB"] else 2]))]


@counts("ExpertMatMul")
def _work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    x = shapes[0]
    return 0 if x is None or out is None else 2 * math.prod(out) * x[-1]


shaped_like((0,), "com.microsoft::MoE", "com.microsoft::QMoE")
