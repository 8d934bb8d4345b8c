"""What dequantisation asks of the values that it reads: what is asked of its result."""

from __future__ import annotations

from planner.verify.uses import hands_on

__all__: list[str] = []

hands_on("DequantizeLinear")
