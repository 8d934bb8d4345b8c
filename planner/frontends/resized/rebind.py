"""Other sizes for a graph whose dimensions are already fixed.

A graph exported with batch 8 has the eight in its Reshape targets, in Expand shapes, in index tables and
masks.  `rebind` walks it in topological order with the old and the new shape of every tensor side by side.
An operator whose operands changed gets a handler (`planner.frontends.resized.carry`), which

- rewrites constant operands that spell out a size (the target of a Reshape, the end of a Slice), or
- *demands* a size of an operand that must agree with the changed one: the mask that is added, the index
  table whose rows are samples.  Demands go up through the operators that made the operand until they
  reach constants, which are resized: shortened to their leading part, or extended where their values
  show how (all equal along the dimension, or an arithmetic progression).  Unread values change shape only.

A dimension is a product of factors (old, new), outermost first, so that a batch merged with a sequence in
one Reshape can be told apart in the next.  After a walk that made demands the walk is repeated; sizes only
ever go from old to new, so it ends.  Shapes are then those that inference gives for the new operands.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from planner.errors import InputError, UsageError
from planner.frontends.facts.sizes import handle
from planner.frontends.resized.carry import Carrier
from planner.ir import Graph, Role

__all__ = ["batch_axes", "named_alike", "rebind"]

MAX_WALKS = 500  # a walk costs milliseconds; most graphs need fewer than ten


def batch_axes(graph: Graph, batch: int) -> dict[tuple[str, int], int]:
    """The new size `batch` for dimension 0 of every data input that shares the first one's.

    InputError when there is no input with dimensions.
    """
    data = [graph.tensors[t] for t in graph.inputs if graph.tensors[t].role is Role.INPUT]
    data = [t for t in data if t.shape]
    if not data:
        raise InputError(f"{graph.name}: --batch {batch} was given, but the model has no input with a batch dimension.")
    first = (data[0].shape or (0,))[0]
    return {(t.name, 0): batch for t in data if t.shape and t.shape[0] == first}


def rebind(graph: Graph, sizes: Mapping[tuple[str, int], int]) -> Graph:
    """The same graph with other sizes for (source, axis) dimensions, carried through everything that follows.

    Sources are the graph's inputs, and its parameters, which only become smaller.  Rebinding to the sizes it has
    returns an equal graph.  UsageError for places that do not exist, InputError naming the operator or constant that
    stops it.
    """
    changes: dict[tuple[str, int], int] = {}
    for (name, axis), size in sizes.items():
        t = graph.tensors.get(name)
        if t is None or name in graph.producers or t.shape is None or not 0 <= axis < len(t.shape):
            raise UsageError(f"cannot rebind {name}.{axis}: the model has no such input or parameter dimension.")
        if size < 1:
            raise UsageError(f"cannot rebind {name}.{axis} to {size}: a dimension must be at least 1.")
        if t.shape[axis] != size:
            changes[name, axis] = size
    if not changes:
        return graph
    carrier = Carrier(graph, {name for name, _ in sizes if graph.tensors[name].role is Role.INPUT})
    for (name, axis), size in changes.items():
        carrier.set_source(name, axis, size)
    for _ in range(MAX_WALKS):
        if carrier.walk(handle):
            return replace(graph, ops=tuple(carrier.ops), tensors=carrier.result())
    raise InputError(f"{graph.name}: the new sizes do not settle after {MAX_WALKS} walks through the graph.")


def named_alike(rebound: Graph, graph: Graph) -> Graph:
    """The rebound graph with the names of the one that it was made of, where a constant that was rewritten has left
    no reader to the one whose name it could not have."""
    made: dict[str, list[str]] = defaultdict(list)
    for t in rebound.tensors:
        if t not in graph.tensors:
            made[t.rpartition("@")[0]].append(t)
    names = {ts[0]: t for t, ts in made.items() if len(ts) == 1 and t in graph.tensors and t not in rebound.tensors}
    if not names:
        return rebound
    ops = (
        replace(op, inputs=tuple(names.get(t, t) for t in op.inputs)) if not names.keys().isdisjoint(op.inputs) else op
        for op in rebound.ops
    )
    tensors = {names.get(n, n): replace(t, name=names[n]) if n in names else t for n, t in rebound.tensors.items()}
    return replace(rebound, ops=tuple(ops), tensors=tensors)
