"""Matrix products."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("MatMul")
def _matmul(c: Call) -> Tensor:
    return torch.matmul(c.x, c.operand(1))


@operator("Gemm")
def _gemm(c: Call) -> Tensor | None:
    a = c.x.t() if c.attr("transA") else c.x
    b = c.operand(1).t() if c.attr("transB") else c.operand(1)
    alpha, beta, bias = c.attr("alpha", 1.0), c.attr("beta", 1.0), c.maybe(2)
    if bias is None:
        y = a @ b
        return y if alpha == 1 else y * alpha
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha)


@operator("Einsum")
def _einsum(c: Call) -> Tensor | None:
    """A label that the result lacks is contracted: where it is split, the local result is a term of a pending sum."""
    operands = [x for x in c.inputs if x is not None]
    found: Tensor = torch.einsum(str(c.attr("equation")).replace(" ", ""), *operands)
    return found


@operator("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul")
def _fused_matmul(c: Call) -> Tensor:
    y = torch.matmul(_turned(c, 0, "A"), _turned(c, 1, "B"))
    alpha = float(c.attr("alpha", 1.0))
    return y if alpha == 1 else y * alpha


def _turned(c: Call, index: int, name: str) -> Tensor:
    """An operand with its batch moved behind the first dimension, or transposed, on request."""
    x = c.operand(index)
    if x.ndim < 2:
        return x
    if c.attr(f"transBatch{name}", 0):
        x = x.movedim(0, -2)
    return x.transpose(-1, -2) if c.attr(f"trans{name}", 0) else x


@operator("Det")
def _det(c: Call) -> Tensor:
    return torch.linalg.det(c.x)


@operator("com.microsoft::Inverse")
def _inverse(c: Call) -> Tensor:
    return torch.linalg.inv(c.x)
