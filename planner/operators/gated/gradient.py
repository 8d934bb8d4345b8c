"""Gated activations of two operands."""

from __future__ import annotations

import numpy as np

from planner.kernels.attributes import Array
from planner.kernels.gradients import Call, register

__all__: list[str] = []


@register("SwiGLU")
def _swiglu(c: Call) -> list[Array | None]:
    """Y = A·σ(αA)·B."""
    a, b, alpha = c.operand(0), c.operand(1), c.attr("alpha", 1.0)
    gate = 1 / (1 + np.exp(-alpha * a))
    return [np.asarray(c.dy * b * gate * (1 + alpha * a * (1 - gate))), np.asarray(c.dy * a * gate)]
