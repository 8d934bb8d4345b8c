"""Which rule belongs to which operator.

A family registers a function with `@rule("MatMul")` or a whole table with `rules(...)`; operators that
cannot be sharded for a reason worth stating are registered with `opaque`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from planner.ir import Graph, Op
from planner.plugins import load_operators
from planner.rules.cost import Cost
from planner.rules.notation import MismatchError
from planner.rules.operator import KeepWholeError, Operator
from planner.rules.parts import with_parts
from planner.rules.rule import Dims, Rule

__all__ = ["RuleFunction", "opaque", "opaque_reason", "registered_types", "replicated", "rule", "rule_for"]

RuleFunction = Callable[[Operator], Rule]

_RULES: dict[str, RuleFunction] = {}
_OPAQUE: dict[str, str] = {}


def rule(*types: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule function for operator types, with their domain where it is not ONNX's own (`example::Op`).

    The function gets the operator (shapes, types, attributes, values of constant operands) and gives its rule,
    usually `sharded(o, "b... m k, b... k n -> b... m n", …)`; it raises `KeepWholeError` with the reason where this
    very operator cannot be split.  ValueError for a type that has a rule already.
    """

    def register(function: RuleFunction) -> RuleFunction:
        for t in types:
            if t in _RULES or t in _OPAQUE:
                raise ValueError(f"operator {t} has two rules; keep one")
            _RULES[t] = function
        return function

    return register


def opaque(reason: str, types: Iterable[str]) -> None:
    """Register operators that stay whole on every rank, and say why."""
    for t in types:
        if t in _RULES or t in _OPAQUE:
            raise ValueError(f"operator {t} has two rules; keep one")
        _OPAQUE[t] = reason


def rule_for(op: Op, graph: Graph) -> Rule | None:
    """The rule of an operator bound to its shapes; None where its type has none (see `replicated`).

    A rule without splittable factors says in `text` why.
    """
    load_operators("rule")
    if op.type in _OPAQUE:
        return replicated(op, graph, _OPAQUE[op.type])
    function = _RULES.get(op.type)
    if function is None:
        return None
    unknown = [t for t in (*op.inputs, *op.outputs) if t and graph.tensors[t].shape is None]
    if unknown:
        return replicated(op, graph, f"the shape of {unknown[0]} depends on data")
    try:
        return with_parts(function(Operator.of(op, graph)), op, graph)
    except (KeepWholeError, MismatchError) as reason:
        return replicated(op, graph, str(reason))


def replicated(op: Op, graph: Graph, reason: str = "no rule is registered for it") -> Rule:
    """All operands and results whole; gradients flow from every float result to every float operand."""
    o = Operator.of(op, graph)
    floats = frozenset(i for i in range(len(o.inputs)) if o.is_float(i))
    gradients = floats if any(t.startswith(("float", "bfloat")) for t in o.output_types) else frozenset[int]()
    work = float(sum(math.prod(s) for s in o.outputs if s is not None))
    return Rule(
        factors={},
        operands=tuple(_whole(s) for s in o.inputs),
        results=tuple(_whole(s) for s in o.outputs),
        differentiable=gradients,
        saved_operands=gradients,
        saved_results=frozenset(j for j, s in enumerate(o.outputs) if s is not None) if gradients else frozenset(),
        cost=Cost(flops=work, backward_flops=work * len(gradients)),
        text=f"whole: {reason}",
    )


def _whole(shape: tuple[int, ...] | None) -> Dims | None:
    return None if shape is None else ((),) * len(shape)


def opaque_reason(type: str) -> str | None:
    """Why operators of this type stay whole, where that was registered."""
    load_operators("rule")
    return _OPAQUE.get(type)


def registered_types() -> frozenset[str]:
    """Operator types with a rule or a stated reason for having none."""
    load_operators("rule")
    return frozenset(_RULES) | frozenset(_OPAQUE)
