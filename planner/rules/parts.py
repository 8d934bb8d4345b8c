"""Which dimensions of an operator may be split in equal parts, each by itself (`Layout.parts`).

What tensors may be split in is a property of the graph (`planner.frontends.resized.parts`): a product that gives
queries, keys and values behind each other is read by operators that take them apart, and only a split of each of the
three by heads leaves every rank with what it needs.  An operator may split a factor so where it makes up a dimension
alone in every tensor, all of them allow it, and it does not matter to the operator which indices a rank has.  A
composite dimension, as (q h d) of a reshape, is split in parts by splitting a minor factor while those that count the
parts stay whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.ir import Graph, Op
from planner.rules.rule import Cut, Rule

__all__ = ["with_parts"]


def with_parts(rule: Rule, op: Op, graph: Graph) -> Rule:
    """The rule, with what the operator's tensors may be split in."""
    found: dict[tuple[str, ...], int] = {}
    alone: dict[str, set[int]] = {}
    for dim, count in _dimensions(rule, op, graph):
        for factor in dim:
            alone.setdefault(factor, set()).add(count if len(dim) == 1 else 0)
        if len(dim) > 1 and count > 1 and _counted(rule, dim, count):
            found[dim] = count
    fixed = _fixed(rule)
    for factor, counts in alone.items():
        if len(counts) == 1 and max(counts) > 1 and factor not in fixed and rule.factors[factor] > 1:
            found[(factor,)] = max(counts)
    return replace(rule, parts=found) if found else rule


def _dimensions(rule: Rule, op: Op, graph: Graph) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every dimension that has factors, and in how many parts the tensor may be split there."""
    for name, dims in (*zip(op.inputs, rule.operands, strict=True), *zip(op.outputs, rule.results, strict=True)):
        if not name or dims is None:
            continue
        parts = graph.tensors[name].parts or (1,) * len(dims)
        yield from ((d, n) for d, n in zip(dims, parts, strict=True) if d)


def _counted(rule: Rule, dim: tuple[str, ...], count: int) -> bool:
    """Some of the major factors, and not all, together count the parts."""
    product = 1
    for factor in dim[:-1]:
        product *= rule.factors[factor]
        if product == count:
            return True
    return False


def _fixed(rule: Rule) -> frozenset[str]:
    """Factors of which it matters which indices a rank has."""
    plain = {name for name, way in rule.cuts.items() if way == Cut((name,))}
    counted = {f for factors in rule.counts.values() for f in factors}
    return (frozenset(rule.factors) - plain) | counted | {f for mode in rule.modes for f in rule.members(mode)}
