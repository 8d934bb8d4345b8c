"""What the runtimes that a plan is for can express."""

from __future__ import annotations

from dataclasses import replace

from planner.ir import Graph
from planner.targets import IN_PARTS, Target

__all__ = ["said_by"]


def said_by(target: Target, graph: Graph) -> Graph:
    """The graph as it may be split there: MindSpore's tensor maps and DTensor's placements of parameters split a
    dimension as one, not each of its equal parts."""
    if target in IN_PARTS or not any(t.parts for t in graph.tensors.values()):
        return graph
    return replace(graph, tensors={n: replace(t, parts=()) if t.parts else t for n, t in graph.tensors.items()})
