"""Which operands of look-ups hold weights: the table, if it is none of data."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((0,), "Gather", "GatherND", shared=(0,))
