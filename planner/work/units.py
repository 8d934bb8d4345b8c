"""The units of a model: blocks of runs of equal ones, and what stands before, between and after them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.frontends.resized.blocks import repeated_blocks
from planner.ir import Graph
from planner.ir.memoized import memoized

__all__ = ["Units", "bucket_shares", "parameter_elements", "units_of"]


@dataclass(frozen=True, slots=True)
class Units:
    """`of[op]` numbers the units in graph order; `repeated[u]`: unit u is a block of a run of equal ones."""

    of: Mapping[str, int]
    repeated: tuple[bool, ...]


@memoized
def units_of(graph: Graph) -> Units:
    """Found once as long as the graph lives."""
    runs = repeated_blocks(graph)
    block = {n: (r, k) for r, run in enumerate(runs) for k, names in enumerate(run.blocks) for n in names}
    anywhere = {name for run in runs for names in run.blocks for name in names[: run.feeders]}
    order: dict[object, int] = {}
    unit: dict[str, object] = {}
    passed: set[object] = set()
    for op in graph.ops:
        own = block.get(op.name)
        if own is not None and op.name not in anywhere:
            passed.add(own)
        unit[op.name] = key = own if own is not None else ("loose", len(passed))
        if op.name not in anywhere:
            order.setdefault(key, len(order))
    return Units({name: order[key] for name, key in unit.items()}, tuple(key in passed for key in order))


@memoized
def bucket_shares(graph: Graph) -> Mapping[str, float]:
    """Parameter → its share of the elements of the unit that reads it first.

    Frameworks gather the weights of a block at once and sum their gradients in buckets of about that size, so that a
    parameter's collectives take their share of what one over the whole unit takes.
    """
    units = units_of(graph).of
    first: dict[str, int] = {}
    for t in graph.parameters:
        readers = [units[op.name] for op, _ in graph.consumers.get(t.name, ())]
        if readers and t.shape is not None and t.elements:
            first[t.name] = min(readers)
    together: Counter[int] = Counter()
    for name, unit in first.items():
        together[unit] += graph.tensors[name].elements
    return {name: graph.tensors[name].elements / together[unit] for name, unit in first.items()}


@memoized
def parameter_elements(graph: Graph) -> int:
    """Elements of all parameters that something reads."""
    shapes = (p.shape for p in graph.parameters if p.name in graph.consumers)
    return sum(math.prod(shape) for shape in shapes if shape is not None)
