"""How quantised operators carry a new size."""

from __future__ import annotations

from planner.frontends.facts.sizes import shaped_like_first

__all__: list[str] = []


shaped_like_first("DequantizeLinear", "QuantizeLinear")
shaped_like_first(
    "com.microsoft::DequantizeLinear",
    "com.microsoft::QLinearLeakyRelu",
    "com.microsoft::QLinearSigmoid",
    "com.microsoft::QLinearSoftmax",
    "com.microsoft::QuantizeLinear",
)
