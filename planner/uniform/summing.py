"""Whether it depends on sizes where ranks' parts of a sum are added up.

What reads a part of a parameter by constants, as from tables of positions or of distances, passes on a gradient that is
summed over ranks before it is put back into the table, or behind it.  Gradients of a parameter that several operators
read meet in one layout or another.  A product that combines what experts make of samples reads the parts that ranks
have of the experts' last product: it divides positions where these are summed first, and columns where each rank gets
the sums of its own.  A program that stands for one of other sizes may do either otherwise.
"""

from __future__ import annotations

from planner.ir import Graph, Op, Role
from planner.planning.schemes.model import Model, model_of

__all__ = ["combines_experts", "sums_by_size"]


def sums_by_size(graph: Graph) -> bool:
    model = model_of(graph)
    same = {t for op in graph.ops if op.name in model.fixed for t in op.outputs}  # at every step
    same |= {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT} | model.weights
    if any(_takes(op, graph, model.weights) for op in graph.ops if all(t in same for t in op.inputs if t)):
        return True
    if combines_experts(graph):
        return True
    return any(len(graph.consumers.get(p.name, ())) > 1 for p in graph.parameters)


def combines_experts(graph: Graph) -> bool:
    """Whether a product combines what experts make of samples."""
    model = model_of(graph)
    return any(_combines(op, graph, model) for op in graph.ops)


def _combines(op: Op, graph: Graph, model: Model) -> bool:
    """A product without weights, of the result of one with a weight for each expert."""
    if not model.rules[op.name].cost.kind.product or not model.weights.isdisjoint(op.inputs):
        return False
    made_by = (graph.producers[t] for t in op.inputs if t in graph.producers)
    return any(
        model.rules[p.name].cost.kind.product and any(graph.tensors[t].rank > 2 for t in p.inputs if t in model.weights)
        for p in made_by
    )


def _takes(op: Op, graph: Graph, weights: frozenset[str]) -> bool:
    """A part of a weight."""
    read = {graph.tensors[t].elements for t in op.inputs if t in weights}
    made = {graph.tensors[t].elements for t in op.outputs if t}
    return bool(read) and (op.type.startswith("Gather") or not made <= read)
