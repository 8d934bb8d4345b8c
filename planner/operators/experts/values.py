"""What products with experts ask of the values of their operands."""

from __future__ import annotations

from planner.verify.uses import Reading, Use, Uses, reads

__all__: list[str] = []


@reads("planner::ExpertMatMul")
def _product(r: Reading) -> Uses:
    weights = r.shape(1) or (1, 1, 1)
    terms = weights[2 if r.attr("transB", 0) else 1]
    return {0: Use(fan_in=terms), 1: Use(fan_in=terms), 2: Use(below=weights[:1]), 3: Use(shift=True)}
