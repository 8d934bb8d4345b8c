"""Shapes of what pooling gives, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.facts.shapes import as_onnx, infers

__all__: list[str] = []


infers("com.microsoft::NhwcMaxPool")(as_onnx("MaxPool", operands=(0,), last=True))
