"""Shapes of what rotary embeddings give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import shaped_like

__all__: list[str] = []


shaped_like((0,), "com.microsoft::RotaryEmbedding")
