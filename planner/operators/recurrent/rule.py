"""Recurrent layers: batch and directions are split.

Time runs step by step, and every step reads all hidden units of the one before: splitting these would gather the state
at each of them.  They stay whole.
"""

from __future__ import annotations

import math

from planner.rules.operator import Operator, sharded
from planner.rules.registry import opaque, rule
from planner.rules.rule import Rule

__all__: list[str] = []


@rule("LSTM", "GRU", "RNN")
def _recurrent(o: Operator) -> Rule:
    """X (t b i), weights, sequence lengths and initial states to all states and the last ones.

    `layout` 1 puts the batch first.  Operands: X, W, R, B, lengths, h, c, peepholes.  The directions of a
    bidirectional layer have weights and states of their own, and meet in X alone.
    """
    batch_first = bool(o.attribute("layout", 0))
    x = "b t! i!" if batch_first else "t! b i!"
    state = "b d h!" if batch_first else "d b h!"
    states = "b t! d h!" if batch_first else "t! d b h!"
    weights = "d * *, d * *, d *"
    steps = float(o.shape(0)[0] * o.shape(0)[1])
    work = float(math.prod(o.shape(1)) + math.prod(o.shape(2)))
    return sharded(
        o,
        f"{x}, {weights}, b, {state}, {state}, d * -> {states}, {state}, {state}",
        kind="matmul",
        differentiable=(0, 1, 2, 3, 5, 6, 7),
        saved=range(8),
        saved_results=(0, 1, 2),
        flops=2.0 * steps * work,
        backward_flops=4.0 * steps * work,
        aware=["d"],
    )


opaque("each call quantises its input over the whole batch and all steps", ["com.microsoft::DynamicQuantizeLSTM"])
