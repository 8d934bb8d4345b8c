"""ONNX operators in MindSpore's terms: the primitive, and which operands its strategy lists.

Families register theirs (`planner.plugins`); an operator without one is left to MindSpore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.plugins import load_operators

__all__ = ["Primitive", "primitive_of", "primitives"]


@dataclass(frozen=True, slots=True)
class Primitive:
    """`operands`: slots of the ONNX operator that the strategy lists, in MindSpore's order.  `flattened`: of an
    operand with more than two dimensions all but the last are one (`nn.Dense`).  `bias`: a slot that MindSpore adds by
    an operator of its own, whose other operand lies as the result does.  `elementwise`: its device matrix has the
    dimensions of the result.  `normalises`: the last dimension is never split."""

    name: str
    operands: tuple[int, ...]
    flattened: bool = False
    bias: int | None = None
    elementwise: bool = False
    normalises: bool = False


_PRIMITIVES: dict[str, Primitive] = {}


def primitives(found: Mapping[str, Primitive]) -> None:
    """Register those of operator types.  ValueError for a type that has one already."""
    for t, primitive in found.items():
        if t in _PRIMITIVES:
            raise ValueError(f"operator {t} has two primitives of MindSpore; keep one")
        _PRIMITIVES[t] = primitive


def primitive_of(type_: str) -> Primitive | None:
    """That of an operator type, where MindSpore's is known."""
    load_operators("mindspore")
    return _PRIMITIVES.get(type_)
