"""Look-ups in MindSpore: nn.Embedding."""

from __future__ import annotations

from planner.emit.mindspore.primitives import Primitive, primitives

__all__: list[str] = []

primitives({"Gather": Primitive("Gather", (0, 1))})
