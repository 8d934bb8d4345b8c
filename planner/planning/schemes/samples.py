"""Data parallelism: every operator splits the index that counts samples."""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir import Graph, Op
from planner.planning.constraints.batch import follow_batch
from planner.rules.rule import Rule
from planner.rules.strategy import AxisRole

__all__ = ["roles_of_samples"]


def roles_of_samples(graph: Graph, rules: Mapping[str, Rule], ranks: int) -> dict[str, AxisRole]:
    """Of the operators whose samples divide over so many ranks.

    Samples enter by the inputs.  What is made for samples of anything else, as a bias of positions beside a mask of
    each sample, is divided as all that read it are: a rank would make it, and its gradient, for all samples otherwise.
    """
    out = {}
    for name, factors in follow_batch(graph, rules, {}, "batch").factors.items():
        rule = rules[name]
        delivered = {f for result in rule.results for d in result or () for f in d}  # a look-up's rows are no samples
        fitting = [f for f in sorted(factors, key=lambda f: (f not in delivered, f)) if rule.factors[f] % ranks == 0]
        if fitting and (fitting[0] in delivered or rule.cost.kind != "gather"):
            out[name] = AxisRole("split", factor=fitting[0])
    for op in reversed(graph.ops):
        if op.name not in out and op.name in rules:
            factor = _divided_by_readers(op, graph, rules, out)
            if factor and rules[op.name].factors[factor] % ranks == 0:
                out[op.name] = AxisRole("split", factor=factor)
    return out


def _divided_by_readers(op: Op, graph: Graph, rules: Mapping[str, Rule], roles: Mapping[str, AxisRole]) -> str:
    """The factor of the first result that all readers of the operator divide by samples; empty where one does not."""
    rule = rules[op.name]
    made = rule.results[0] if len(op.outputs) == 1 else None
    readers = graph.consumers.get(op.outputs[0], ())
    if made is None or not readers:
        return ""
    factors = set[str]()
    for reader, i in readers:
        role = roles.get(reader.name)
        read = None if role is None else rules[reader.name].operands[i]
        if role is None or read is None:
            return ""
        dims = (d for d, parts in enumerate(read) if _major(rules[reader.name], parts) == role.factor)
        factors.add(next((_major(rule, made[d]) for d in dims), ""))
    return factors.pop() if len(factors) == 1 else ""


def _major(rule: Rule, parts: tuple[str, ...]) -> str:
    return next((f for f in parts if rule.factors[f] > 1), "")
