"""Shapes of what products give, where ONNX does not say, and how their work is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from planner.frontends.facts.flops import Shape, counts
from planner.frontends.facts.shapes import Inferred, Operands, dtype_of, infers, product, shaped_like
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


@counts("FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "QLinearMatMul")
def _product_work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    first = shapes[0]
    if out is None or not first:
        return 0
    transposed = op.attributes.get("transA", 0) and len(first) > 1
    return 2 * math.prod(out) * (first[-2] if transposed else first[-1])


@counts("Einsum")
def _einsum_work(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    terms = str(op.attributes.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if shape is None or "." in term:
            return 0
        sizes.update(zip(term, shape, strict=False))
    return (2 if len(shapes) > 1 else 1) * math.prod(sizes.values())
