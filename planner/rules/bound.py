"""The rules of all operators of a graph."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from planner.ir import Graph, Role
from planner.rules.registry import replicated, rule_for
from planner.rules.rule import Rule

__all__ = ["bind_rules", "signatures"]


def signatures(graph: Graph) -> dict[str, Hashable]:
    """Operator name → what its rule depends on: type, attributes, shapes, element types, constants read."""

    def describe(name: str) -> Hashable:
        if not name:
            return None
        t = graph.tensors[name]
        value = None if t.value is None else t.value.tobytes()
        fixed = t.role in (Role.PARAMETER, Role.CONSTANT)
        return t.shape, t.dtype, fixed, value, t.parts

    def freeze(value: object) -> Hashable:
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), value.tobytes()
        return tuple(map(freeze, value)) if isinstance(value, list | tuple) else repr(value)

    return {
        op.name: (
            op.type,
            op.opset,
            tuple((k, freeze(v)) for k, v in sorted(op.attributes.items())),
            tuple(map(describe, op.inputs)),
            tuple(map(describe, op.outputs)),
        )
        for op in graph.ops
    }


def bind_rules(graph: Graph) -> tuple[dict[str, Rule], list[str]]:
    """A rule for every operator, and the sorted types that are replicated for want of one.  Operators of one signature
    have the same object, so that the layers of a deep model are bound once."""
    by_signature: dict[Hashable, Rule] = {}
    rules: dict[str, Rule] = {}
    missing: set[str] = set()
    keys = signatures(graph)
    for op in graph.ops:
        key = keys[op.name]
        if key not in by_signature:
            rule = rule_for(op, graph)
            if rule is None:
                missing.add(op.type)
                rule = replicated(op, graph)
            by_signature[key] = rule
        rules[op.name] = by_signature[key]
    return rules, sorted(missing)
