"""Expert parallelism (Lepikhin et al. 2020): inputs arrive divided along their first dimension, samples.

Weights with a dimension that their other operand and the result share, an expert's, are divided there, and so is an
operator that is experts altogether; all other weights are whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from planner.ir import Graph, Role
from planner.planning.schemes.arrival import Arrival, KindOfAxis, Ways
from planner.planning.schemes.ways import Way
from planner.rules.rule import Dims, Rule

__all__ = ["EXPERT", "has_experts"]

_EXPERTS: Final = frozenset({"com.microsoft::MoE", "com.microsoft::QMoE"})


def has_experts(graph: Graph, rules: Mapping[str, Rule]) -> bool:
    """Whether some product has a weight for each expert, or experts are one operator."""
    for op in graph.ops:
        tensors = [graph.tensors.get(t) for t in op.inputs]
        weights = {i for i, t in enumerate(tensors) if t is not None and t.role is Role.PARAMETER}
        stacks = [i for i in weights if (t := tensors[i]) is not None and t.rank > 2]
        if rules[op.name].cost.kind == "matmul" and _counting_experts(rules[op.name], stacks, weights):
            return True
        if op.type in _EXPERTS:
            return True
    return False


def _admitted(at: Arrival, ways: Ways) -> Ways:
    experts = _counting_experts(at.rule, at.matrices, at.weights)

    def by_expert(w: Way) -> bool:
        if any(c.kind == "all_to_all" for c in w.inner):
            return True
        # Biases of experts share their number with what they are added to, and tables of positions the sequence.
        return bool(w.factors & experts) and (at.rule.cost.kind == "matmul" or at.follows(w))

    return [w for w in ways if w.divides(at.matrices) and by_expert(w)] or at.following(ways)


def _counting_experts(rule: Rule, stacks: Iterable[int], weights: Collection[int]) -> frozenset[str]:
    """Factors that one of these weights has in common with an activation and with the result."""

    def factors(dims: Dims | None) -> set[str]:
        return {f for d in dims or () for f in d}

    activations = set[str]().union(*(factors(d) for i, d in enumerate(rule.operands) if i not in weights))
    return frozenset(f for i in stacks for f in factors(rule.operands[i]) & activations & factors(rule.results[0]))


EXPERT: Final = KindOfAxis("ep", 0, _admitted, True, "the model has no weights of experts in a number that {} divides")
