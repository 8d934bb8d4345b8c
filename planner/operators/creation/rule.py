"""Operators whose result is made from a shape, a range or places: a rank makes its part without communication."""

from __future__ import annotations

from planner.rules.notation import labels
from planner.rules.operator import Operator, sharded
from planner.rules.registry import rule
from planner.rules.rule import Combine, Rule

__all__: list[str] = []


@rule("ConstantOfShape")
def _constant_of_shape(o: Operator) -> Rule:
    return sharded(o, f"- -> {labels('d', len(o.result()))}", kind="layout", flops=0.0, shape_operand=0)


@rule("EyeLike")
def _eye_like(o: Operator) -> Rule:
    """Rows and columns are compared by their places in the whole."""
    return sharded(o, "r c -> r c", kind="layout", flops=0.0, aware=["r", "c"])


@rule("Range")
def _range(o: Operator) -> Rule:
    return sharded(o, "-, -, - -> d", kind="layout", aware=["d"])


@rule("Shape", "Size")
def _shape(o: Operator) -> Rule:
    """Every rank knows the shape of the whole, whatever it holds."""
    names = [f"d{i}" for i in range(o.rank(0))]
    combine = dict.fromkeys(names, Combine.INNER)
    return sharded(o, f"{' '.join(names)} -> *...", kind="free", flops=0.0, combine=combine, aware=names)
