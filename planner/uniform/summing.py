"""Whether it depends on sizes where gradients of parameters are summed.

What reads a part of a parameter by constants, as from tables of positions or of distances, passes on a gradient that is
summed over ranks before it is put back into the table, or behind it.  Gradients of a parameter that several operators
read meet in one layout or another.  A program that stands for one of other sizes may do either otherwise.
"""

from __future__ import annotations

from planner.ir import Graph, Op, Role
from planner.planning.schemes.model import model_of

__all__ = ["sums_by_size"]


def sums_by_size(graph: Graph) -> bool:
    model = model_of(graph)
    same = {t for op in graph.ops if op.name in model.fixed for t in op.outputs}  # at every step
    same |= {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT} | model.weights
    if any(_takes(op, graph, model.weights) for op in graph.ops if all(t in same for t in op.inputs if t)):
        return True
    return any(len(graph.consumers.get(p.name, ())) > 1 for p in graph.parameters)


def _takes(op: Op, graph: Graph, weights: frozenset[str]) -> bool:
    """A part of a weight."""
    read = {graph.tensors[t].elements for t in op.inputs if t in weights}
    made = {graph.tensors[t].elements for t in op.outputs if t}
    return bool(read) and (op.type.startswith("Gather") or not made <= read)
