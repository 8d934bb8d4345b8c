"""Shapes of what products give, where ONNX does not say."""

from __future__ import annotations

import numpy as np

from planner.frontends.shapes import (
    Inferred,
    Operands,
    dtype_of,
    infers,
    product,
    shaped_like,
)
from planner.ir import Op

__all__: list[str] = []


def _transposed(shape: tuple[int, ...], op: Op, side: str) -> tuple[int, ...]:
    """transBatch moves the first dimension behind the other batch dimensions and the row; trans swaps the last two."""
    if op.attributes.get(f"transBatch{side}", 0):
        shape = (*shape[1:-1], shape[0], shape[-1])
    if op.attributes.get(f"trans{side}", 0):
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape


@infers("com.microsoft::FusedMatMul")
def _fused_matmul(op: Op, operands: Operands) -> list[Inferred]:
    a, b = operands[0], operands[1]
    if a is None or b is None or not a.shape or not b.shape or len(a.shape) < 2 or len(b.shape) < 2:
        return [(None, None)]
    sa, sb = _transposed(a.shape, op, "A"), _transposed(b.shape, op, "B")
    try:
        batch = np.broadcast_shapes(sa[:-2], sb[:-2])
    except ValueError:
        return [(a.dtype, None)]
    return [(a.dtype, (*batch, sa[-2], sb[-1]))]


infers("com.microsoft::FusedGemm", "com.microsoft::GemmFastGelu", "com.microsoft::TransposeMatMul")(
    product(1, lambda operands: dtype_of(operands, 0, "float32"))
)
shaped_like((0,), "com.microsoft::Inverse")
