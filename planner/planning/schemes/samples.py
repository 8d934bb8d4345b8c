"""Data parallelism: every operator splits the index that counts samples."""

from __future__ import annotations

from collections.abc import Mapping

from planner.ir import Graph
from planner.planning.constraints.batch import follow_batch
from planner.rules.rule import Rule
from planner.rules.strategy import AxisRole

__all__ = ["roles_of_samples"]


def roles_of_samples(graph: Graph, rules: Mapping[str, Rule], ranks: int) -> dict[str, AxisRole]:
    """Of the operators whose samples divide over so many ranks."""
    out = {}
    for name, factors in follow_batch(graph, rules, {}, "batch").factors.items():
        rule = rules[name]
        delivered = {f for result in rule.results for d in result or () for f in d}  # a look-up's rows are no samples
        fitting = [f for f in sorted(factors, key=lambda f: (f not in delivered, f)) if rule.factors[f] % ranks == 0]
        if fitting and (fitting[0] in delivered or rule.cost.kind != "gather"):
            out[name] = AxisRole("split", factor=fitting[0])
    return out
