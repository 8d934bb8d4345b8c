"""Shapes of what convolutions give, where ONNX does not say."""

from __future__ import annotations

from planner.frontends.shapes import (
    as_onnx,
    infers,
)

__all__: list[str] = []


infers("com.microsoft::FusedConv")(as_onnx("Conv"))
