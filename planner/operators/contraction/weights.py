"""Which operands of products hold weights: either factor may, and either may be data."""

from __future__ import annotations

from planner.frontends.facts.weights import weights_at

__all__: list[str] = []

weights_at((0, 1), "FusedMatMul", "MatMul", shared=(0, 1))
weights_at((0, 1, 2), "Gemm", shared=(0, 1))
weights_at((0, 1, 2), "Einsum", shared=(0, 1, 2))
weights_at((1, 2), "com.microsoft::FusedGemm", "com.microsoft::GemmFastGelu")
