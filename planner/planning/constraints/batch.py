"""Where the batch goes: the index of every operator that counts samples, for plans that split nothing else.

The batch enters by the inputs and follows the factors of the rules: a factor that is the most major one (above one
element) in an operand's batch dimension is the operator's batch factor, and every dimension of a result in which it is
the most major one is a batch dimension in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import InputError
from planner.ir import Graph
from planner.rules.rule import Rule

__all__ = ["Batch", "follow_batch", "leading"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Operator → its batch factors; tensor → its batch dimensions.  What is not in it carries no batch."""

    factors: Mapping[str, frozenset[str]]
    dims: Mapping[str, frozenset[int]]


def follow_batch(graph: Graph, rules: Mapping[str, Rule], given: Mapping[str, int], where: str) -> Batch:
    """`given`: input → batch dimension; where it is empty, the batch is the first dimension of the first input that has
    more than one element there, and of all inputs of that size.  InputError for inputs that are not there."""
    dims: dict[str, frozenset[int]] = {}
    for name, d in (given or leading(graph)).items():
        if name not in graph.inputs:
            raise InputError(f"constraints {where}: batch: {name!r} is no input; they are {', '.join(graph.inputs)}")
        if d >= graph.tensors[name].rank:
            shape = graph.tensors[name].shape
            raise InputError(f"constraints {where}: batch: input {name} of shape {shape} has no dimension {d}")
        dims[name] = frozenset({d})
    factors: dict[str, frozenset[str]] = {}
    for op in graph.ops:
        rule = rules[op.name]

        def major(parts: tuple[str, ...], rule: Rule = rule) -> str:
            return next((f for f in parts if rule.factors[f] > 1), "")

        own = {
            major(placed[d])
            for name, placed in zip(op.inputs, rule.operands, strict=False)
            if placed is not None
            for d in dims.get(name, ())
            if d < len(placed)
        } - {""}
        if own:
            factors[op.name] = frozenset(own)
            for name, result in zip(op.outputs, rule.results, strict=False):
                carried = frozenset(d for d, parts in enumerate(result or ()) if major(parts) in own)
                if name and carried:
                    dims[name] = carried
    return Batch(factors, dims)


def leading(graph: Graph) -> dict[str, int]:
    """Inputs whose first dimension counts samples, with that dimension."""
    sizes = {n: graph.tensors[n].shape for n in graph.inputs}
    first = next((s[0] for s in sizes.values() if s and s[0] > 1), None)
    return {n: 0 for n, s in sizes.items() if first is not None and s and s[0] == first}
