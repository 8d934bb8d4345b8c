"""Floating-point operations as people count them: of matrix products, convolutions, attention and recurrence.

Families register theirs beside the shapes of their results (`planner.plugins`); what none counts is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.frontends.steps.draft import split_type
from planner.ir import Graph, Op
from planner.plugins import load_operators

__all__ = ["Count", "Shape", "counts", "flops"]

Shape = tuple[int, ...]
# (operator, shapes of its operands, of which the first is known, and of its first result) → operations
Count = Callable[[Op, "Sequence[Shape | None]", "Shape | None"], int]

_COUNTS: dict[str, Count] = {}


def counts(*types: str) -> Callable[[Count], Count]:
    """Register how operations of these types are counted; a name without a domain stands for that of every domain.

    A multiply-add counts two.  ValueError for a type that has a count already."""

    def register(function: Count) -> Count:
        for t in types:
            if t in _COUNTS:
                raise ValueError(f"operations of {t} are counted twice; keep one")
            _COUNTS[t] = function
        return function

    return register


def flops(graph: Graph, op: Op) -> int:
    """Operations of one operator; 0 where its type has no count, and where a shape that it needs depends on data."""
    load_operators("shapes")
    count = _COUNTS.get(op.type) or _COUNTS.get(split_type(op.type)[1])
    shapes = [graph.tensors[t].shape if t else None for t in op.inputs]
    if count is None or not shapes or shapes[0] is None:
        return 0
    return count(op, shapes, graph.tensors[op.outputs[0]].shape if op.outputs[0] else None)
