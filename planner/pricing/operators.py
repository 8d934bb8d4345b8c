"""Operators and their rules.

Operators that look the same (type, attributes, shapes, activity) form one class, so that a model of many
identical layers is priced once, and the solver sees the very same arrays again and again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

import numpy as np

from planner.ir import Graph, Op, Role, Tensor
from planner.rules.registry import replicated, rule_for
from planner.rules.rule import Rule

__all__ = ["OperatorClass", "bind_rules", "operator_classes", "signatures"]


@dataclass(frozen=True, slots=True, eq=False)
class OperatorClass:
    """Operators of one signature.  Tensors are None where absent; `*_active` say which carry a gradient."""

    rule: Rule
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    inputs_active: tuple[bool, ...]
    outputs_active: tuple[bool, ...]
    weights_only: bool

    @property
    def gradient_flows(self) -> bool:
        return any(self.outputs_active)


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
    """A rule for every operator, and the sorted types that are replicated for want of one."""
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


def operator_classes(
    graph: Graph, rules: Mapping[str, Rule], active: frozenset[str]
) -> tuple[list[OperatorClass], dict[str, int]]:
    """The classes, and operator name → index of its class."""
    classes: list[OperatorClass] = []
    found: dict[Hashable, int] = {}
    of: dict[str, int] = {}
    keys = signatures(graph)
    for op in graph.ops:
        carries = tuple(t in active for t in op.inputs), tuple(t in active for t in op.outputs)
        weights_only = _reads_weights_only(op, graph)
        number = found.setdefault((keys[op.name], carries, weights_only), len(classes))
        if number == len(classes):
            inputs = tuple(graph.tensors[t] if t else None for t in op.inputs)
            outputs = tuple(graph.tensors[t] if t else None for t in op.outputs)
            classes.append(OperatorClass(rules[op.name], inputs, outputs, *carries, weights_only))
        of[op.name] = number
    return classes, of


def _reads_weights_only(op: Op, graph: Graph) -> bool:
    """A transposed or cast weight: runtimes store it that way, so the operator costs nothing per step."""
    read = [graph.tensors[t] for t in op.inputs if t]
    return bool(read) and all(t.role in (Role.PARAMETER, Role.CONSTANT) for t in read)
