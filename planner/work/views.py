"""Operators whose result lies in the storage of their first operand."""

from __future__ import annotations

from typing import Final

from planner.ir import Graph, Op, Role
from planner.rules.rule import Rule

__all__ = ["ANSWERS", "shares_storage"]

ANSWERS: Final = frozenset({"Shape", "Size"})  # cost nothing, and make something new
_WEIGHTS: Final = frozenset({"Transpose", "Cast", "CastLike"})


def shares_storage(op: Op, rule: Rule, graph: Graph) -> bool:
    """Whether the first result is the first operand under another shape.

    Matrix products read a weight transposed or not, and all floating-point tensors are computed with in one width, so
    that a transposed or cast weight is the weight itself.
    """
    if rule.cost.kind == "free":
        return op.type not in ANSWERS
    if op.type not in _WEIGHTS or graph.tensors[op.inputs[0]].role is not Role.PARAMETER:
        return False
    return op.type == "Transpose" or all(graph.tensors[t].is_float for t in (op.inputs[0], op.outputs[0]))
