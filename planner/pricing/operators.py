"""Operators and their rules.

Operators that look the same (type, attributes, shapes, activity) form one class, so that a model of many
identical layers is priced once, and the solver sees the very same arrays again and again.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from planner.ir import Graph, Tensor
from planner.rules.bound import signatures
from planner.rules.rule import Rule
from planner.work.fusion import Part

__all__ = ["OperatorClass", "operator_classes"]


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
