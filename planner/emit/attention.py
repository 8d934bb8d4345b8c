"""How attention goes about positions that ranks divide."""

from __future__ import annotations

from typing import Final, Literal

from planner.emit.scheme import Scheme
from planner.planning.document import OperatorDocument, PlanDocument

__all__ = ["ContextBy", "context_by"]

ContextBy = Literal["ring", "all-to-all", "gather"]
_SCORES: Final = "Softmax"
_WHOLE: Final = frozenset({"Attention", "com.microsoft::MultiHeadAttention", "com.microsoft::GroupQueryAttention"})


def context_by(plan: PlanDocument, scheme: Scheme) -> ContextBy:
    """Ranks exchange heads for positions (DeepSpeed-Ulysses), pass keys and values round, or gather them."""
    axes = {a for a, use in scheme.uses.items() if use == "context"}
    operators = plan.operators.values()
    if any(axes & {a for d in _heads(op) for a in d} for op in operators):
        return "all-to-all"
    return "ring" if any("&" in role for op in operators for role in op.strategy.values()) else "gather"


def _heads(op: OperatorDocument) -> tuple[tuple[str, ...], ...]:
    """What divides the heads in the result of an attention, or in its scores."""
    result = op.results[0] if op.results else None
    if result is None or op.type not in (_SCORES, *_WHOLE):
        return ()
    dims = tuple(tuple(d) for d in result.dims)
    if len(dims) > 3:  # samples, heads (in groups), positions, and what each has
        return dims[1:-2]
    return dims[2:] if op.type in _WHOLE else ()
