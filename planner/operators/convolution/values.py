"""What convolutions ask of the values of their operands: that their sums stay of one size."""

from __future__ import annotations

import math

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("Conv")
def _conv(r: Reading) -> Uses:
    weight = r.shape(1)
    return {1: Use(fan_in=math.prod(weight[1:]), terms=tuple(range(1, len(weight)))), 2: Use(shift=True)}


@reads("ConvTranspose")
def _transposed(r: Reading) -> Uses:
    weight = r.shape(1)
    return {1: Use(fan_in=max(1, weight[0] // r.attr("group", 1))), 2: Use(shift=True)}
