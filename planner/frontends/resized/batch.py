"""The graph of another batch, where the file has one that is fixed: the last step of the import."""

from __future__ import annotations

from planner.frontends.resized.parts import mark_parts
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.ir import Graph

__all__ = ["of_batch"]


def of_batch(own: Graph, batch: int) -> Graph:
    """`own`: the graph of the file's own batch, before its parts are marked.  InputError naming what stops the size."""
    return mark_parts(rebind(own, batch_axes(own, batch)))
