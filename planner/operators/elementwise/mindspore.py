"""Operators on each element in MindSpore."""

from __future__ import annotations

from planner.emit.mindspore.primitives import Primitive, primitives

__all__: list[str] = []

primitives(
    {
        "Add": Primitive("Add", (0, 1), elementwise=True),
        "Sub": Primitive("Sub", (0, 1), elementwise=True),
        "Mul": Primitive("Mul", (0, 1), elementwise=True),
        "Div": Primitive("RealDiv", (0, 1), elementwise=True),
        "PRelu": Primitive("PReLU", (0, 1)),
    }
)
