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
    if "broadcast" in c.op.attributes:
        return None
    a = c.x.t() if c.attr("transA") else c.x
    b = c.operand(1).t() if c.attr("transB") else c.operand(1)
    alpha, beta, bias = c.attr("alpha", 1.0), c.attr("beta", 1.0), c.maybe(2)
    if bias is None:
        y = a @ b
        return y if alpha == 1 else y * alpha
    return torch.addmm(bias, a, b, beta=beta, alpha=alpha)
