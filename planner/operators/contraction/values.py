"""What products ask of the values of their operands: that their sums stay of one size."""

from __future__ import annotations

import math

from planner.kernels.attributes import string
from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("MatMul", "com.microsoft::FusedMatMul")
def _matmul(r: Reading) -> Uses:
    flip_a, flip_b = r.attr("transA", 0), r.attr("transB", 0)
    a, b = r.shape(0), r.shape(1)
    terms = (b[-1] if flip_b else b[-2]) if len(b) > 1 else (a[-2] if flip_a and len(a) > 1 else (a or (1,))[-1])
    left = len(a) - (2 if flip_a and len(a) > 1 else 1)
    right = len(b) - (1 if flip_b or len(b) < 2 else 2)
    return {0: Use(fan_in=terms, terms=(left,)), 1: Use(fan_in=terms, terms=(right,))}


@reads("Gemm")
def _gemm(r: Reading) -> Uses:
    b = r.shape(1) or (1, 1)
    terms = b[1] if r.attr("transB", 0) else b[0]
    left, right = (0 if r.attr("transA", 0) else 1), (1 if r.attr("transB", 0) else 0)
    return {0: Use(fan_in=terms, terms=(left,)), 1: Use(fan_in=terms, terms=(right,)), 2: Use(shift=True)}


@reads("Einsum")
def _einsum(r: Reading) -> Uses:
    equation = string(r.op.attributes.get("equation")).replace(" ", "").replace("...", "")
    left, _, right = equation.partition("->")
    sizes: dict[str, int] = {}
    for i, term in enumerate(left.split(",")):
        sizes.update(zip(reversed(term), reversed(r.shape(i)), strict=False))
    terms = math.prod(n for label, n in sizes.items() if label not in right)
    return {i: Use(fan_in=max(1, terms)) for i in range(len(r.op.inputs))}
