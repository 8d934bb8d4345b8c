"""Operators and their rules.

Operators that look the same (type, attributes, shapes, activity) form one class, so that a model of many
identical layers is priced once, and the solver sees the very same arrays again and again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from planner.ir import Graph, Role, Tensor
from planner.rules.registry import replicated, rule_for
from planner.rules.rule import Rule
from planner.work.fusion import Part

__all__ = ["OperatorClass", "bind_rules", "operator_classes", "signatures"]


_IDLE: Final = Part("idle")


@dataclass(frozen=True, slots=True, eq=False)
class OperatorClass:
    """Operators of one signature.  Tensors are None where absent; `*_active` say which carry a gradient; `part` is what
    they do for the kernel they belong to."""

    rule: Rule
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    inputs_active: tuple[bool, ...]
    outputs_active: tuple[bool, ...]
    part: Part

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
    graph: Graph, rules: Mapping[str, Rule], active: frozenset[str], parts: Mapping[str, Part]
) -> tuple[list[OperatorClass], dict[str, int]]:
    """The classes, and operator name → index of its class.  `parts` as of `planner.work.fusion`; what has none computes
    the same at every step."""
    classes: list[OperatorClass] = []
    found: dict[Hashable, int] = {}
    of: dict[str, int] = {}
    keys = signatures(graph)
    for op in graph.ops:
        carries = tuple(t in active for t in op.inputs), tuple(t in active for t in op.outputs)
        part = parts.get(op.name, _IDLE)
        number = found.setdefault((keys[op.name], carries, part), len(classes))
        if number == len(classes):
            inputs = tuple(graph.tensors[t] if t else None for t in op.inputs)
            outputs = tuple(graph.tensors[t] if t else None for t in op.outputs)
            classes.append(OperatorClass(rules[op.name], inputs, outputs, *carries, part))
        of[op.name] = number
    return classes, of
