"""Which operands of operators on each element hold weights: slopes, and biases that are added inside.

Weights in arithmetic are told by what stands beside them (`planner.frontends.steps.roles`).
"""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((1,), "PRelu", "com.microsoft::BiasGelu", "com.microsoft::FastGelu")
