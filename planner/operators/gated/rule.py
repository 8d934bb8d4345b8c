"""Gated activations of two operands."""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("SwiGLU")
def _swiglu(o: Operator) -> Rule:
    """Swish of the gate times the other operand, in which it is linear."""
    return sharded(
        o,
        "d..., d... -> d...",
        linear=[(1,)],
        differentiable=(0, 1),
        saved=(0, 1),
        flops=10.0 * math.prod(o.result()),
        backward_flops=16.0 * math.prod(o.result()),
    )
