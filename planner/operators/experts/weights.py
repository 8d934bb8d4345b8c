"""Which operands of experts hold weights."""

from __future__ import annotations

from planner.frontends.facts.weights import quantised_at, weights_at

__all__: list[str] = []

weights_at((1, 3), "ExpertMatMul")
weights_at((2, 3, 4, 5, 6, 7), "com.microsoft::MoE")

quantised_at({"QMoE": {2: (3, 11), 5: (6, 12), 8: (9, 13), 4: (), 7: (), 10: ()}})
