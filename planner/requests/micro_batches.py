"""What the micro-batches of a plan compute otherwise than the whole batch does, in words."""

from __future__ import annotations

from typing import Final

from planner.errors import InputError, UsageError
from planner.frontends.resized.rebind import batch_axes, rebind
from planner.frontends.resized.siblings import cut_layers
from planner.ir import Graph, Role
from planner.work.by_sample import Meeting, meetings
from planner.work.constants import counted_on

__all__ = ["computed_otherwise"]

_BLOCKS: Final = 3  # of equal ones in a row: what the second makes of the first's samples, those behind make of theirs


def computed_otherwise(graph: Graph, micro_batches: int) -> list[str]:
    """Lines for the `graph` of one of so many micro-batches; none where samples are by themselves, as far as the
    operators show it, and of a graph with a backward pass of its own, which is begun with what the loss adds up to."""
    data = [t.shape for t in (graph.tensors[n] for n in graph.inputs) if t.shape]
    if micro_batches == 1 or not data or any(op.type.endswith("Grad") for op in graph.ops):
        return []
    try:
        found = _meetings(graph, 2 * data[0][0])
    except (InputError, UsageError, LookupError, ValueError):
        return []  # nothing can be said of a graph that has no other size, or makes no sense with it
    names = [f"{m.op.type} {m.op.name}" for m in found if m.kind == "samples"]
    taken = [f"{m.op.type} {m.op.name}" for m in found if m.kind == "rows"]
    lines = []
    if names:
        lines.append(
            f"samples meet each other, or are chosen by their places, in {_these(names)}, so that the {micro_batches} "
            "micro-batches compute something else than the whole batch does; --micro-batches 1 prevents it"
        )
    if taken:
        lines.append(
            f"as many rows as there are samples are taken by {_these(taken)}, and so the first ones for each of the "
            f"{micro_batches} micro-batches; --micro-batches 1 prevents it"
        )
    return lines


def _meetings(graph: Graph, samples: int) -> list[Meeting]:
    """Of the graph as a part of one of so many samples: of a few of its equal blocks, and of all where samples meet in
    these, to name each place."""
    cut, _ = cut_layers(graph, _BLOCKS)
    if cut is not graph and not _all_meetings(cut, samples):
        return []
    return _all_meetings(graph, samples)


def _all_meetings(graph: Graph, samples: int) -> list[Meeting]:
    double = rebind(graph, batch_axes(graph, samples))
    # Those of which the file does not hold the values may be anything: places of the batch are most of them.
    unknown = {t.name for t in double.tensors.values() if t.role is Role.CONSTANT and t.value is None}
    counted = counted_on(graph, double, lambda name: double.tensors[name].value)
    return list(meetings(graph, double, counted | unknown))


def _these(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
