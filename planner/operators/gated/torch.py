"""Gated activations of two operands."""

from __future__ import annotations

import torch
from torch import Tensor

from planner.runtime.registry import Call, operator

__all__: list[str] = []


@operator("SwiGLU")
def _swiglu(c: Call) -> Tensor:
    return c.x * torch.sigmoid(float(c.attr("alpha", 1.0)) * c.x) * c.operand(1)
