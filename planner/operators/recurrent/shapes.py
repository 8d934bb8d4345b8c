"""How the work of recurrent layers is counted; their shapes are for ONNX to say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.frontends.facts.flops import Shape, counts
from planner.ir import Op

__all__: list[str] = []


@counts("GRU", "LSTM", "RNN")
def _recurrent(op: Op, shapes: Sequence[Shape | None], out: Shape | None) -> int:
    """The products of every step with the weights of the operand and of the state."""
    x, weight, state = (*shapes, None, None)[:3]
    if x is None or weight is None or state is None or len(x) != 3:
        return 0
    return 2 * x[0] * x[1] * (math.prod(weight) + math.prod(state))
