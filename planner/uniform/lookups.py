"""Whether a model takes parts of parameters by constants, as from tables of positions or of distances.

Their gradients are summed over ranks before they are put back into the table, or behind it, as sizes have it.  A
program that stands for one of other sizes may do so at the other place.
"""

from __future__ import annotations

from planner.ir import Graph, Op, Role
from planner.planning.schemes.model import model_of

__all__ = ["looks_up"]


def looks_up(graph: Graph) -> bool:
    model = model_of(graph)
    same = {t for op in graph.ops if op.name in model.fixed for t in op.outputs}  # at every step
    same |= {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT} | model.weights
    return any(_takes(op, graph, model.weights) for op in graph.ops if all(t in same for t in op.inputs if t))


def _takes(op: Op, graph: Graph, weights: frozenset[str]) -> bool:
    read = {graph.tensors[t].elements for t in op.inputs if t in weights}
    made = {graph.tensors[t].elements for t in op.outputs if t}
    return bool(read) and (op.type.startswith("Gather") or not made <= read)
