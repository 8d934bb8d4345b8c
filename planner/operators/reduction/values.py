"""What reductions ask of the values of their operands: what is asked of the result."""

from __future__ import annotations

import dataclasses
import math

from planner.verify.uses import Reading, Uses, hands_on, reads

__all__: list[str] = []

hands_on("ReduceMax", "ReduceMin")


@reads("CumSum")
def _running_sum(r: Reading) -> Uses:
    """As many terms as there may be share the bound of an index."""
    use, length = r.moved(), max(1, math.prod(r.result_shape))
    below = None if use.below is None else tuple(max(1, b // length) for b in use.below)
    return {0: dataclasses.replace(use, below=below, loose=True)}
