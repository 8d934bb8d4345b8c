"""Which operands of deformable convolutions hold weights: filter and bias; offsets and mask are data."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((1, 3), "DeformConv")
