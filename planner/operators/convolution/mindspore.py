"""Convolutions in MindSpore: nn.Conv2d."""

from __future__ import annotations

from planner.emit.mindspore.primitives import Primitive, primitives

__all__: list[str] = []

primitives({"Conv": Primitive("Conv2D", (0, 1), bias=2)})
