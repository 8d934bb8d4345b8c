"""Which operands of dropout hold weights: a bias that is added inside."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((1,), "com.microsoft::BiasDropout")
