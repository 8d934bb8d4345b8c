"""The import, step by step.

parse → hoist weights → read → bind → infer and fold → un-merge → transposes → roles → experts → loss → (rebind)
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.errors import InputError
from planner.frontends.facts.loss import find_loss
from planner.frontends.facts.stated import Stated, stated
from planner.frontends.file.parse import parse
from planner.frontends.resized.batch import of_batch
from planner.frontends.resized.parts import mark_parts
from planner.frontends.steps.bind import bind_dimensions
from planner.frontends.steps.draft import Draft, read
from planner.frontends.steps.experts import fuse_experts
from planner.frontends.steps.hoist import hoist_weights
from planner.frontends.steps.infer import propagate
from planner.frontends.steps.merged import transpose_apart
from planner.frontends.steps.roles import assign_roles
from planner.frontends.steps.unmerge import fill_sources, unmerge
from planner.ir import Graph

__all__ = ["import_bytes", "import_with_own"]


def import_bytes(
    data: bytes, *, name: str = "model", bind: Mapping[str, int] | None = None, batch: int | None = None
) -> Graph:
    """A Graph with every input dimension bound, from a serialised ModelProto.

    `bind`: sizes of symbolic dimensions, by name or as `<input>.<axis>`.  `batch`: binds the batch dimension
    where it is symbolic and rebinds it where it is static.  Tensors whose shape depends on data have shape
    None.  Raises InputError for a model that cannot be understood and UsageError for unknown names in `bind`.
    """
    return import_with_own(data, name=name, bind=bind, batch=batch)[0]


def import_with_own(
    data: bytes, *, name: str = "model", bind: Mapping[str, int] | None = None, batch: int | None = None
) -> tuple[Graph, Graph | None]:
    """As `import_bytes`, with the graph of which `of_batch` makes that of any other batch; None where the batch may be
    a symbolic dimension, to which the import gave its size."""
    model = parse(data, name)
    said = stated(model, name)
    hoist_weights(model)
    draft = read(model, name)
    sizes, batch_used = bind_dimensions(draft, bind or {}, batch)
    propagate(draft, sizes)
    fill_sources(draft)
    unmerge(draft)
    transpose_apart(draft)
    assign_roles(draft, said)
    fuse_experts(draft)
    graph = _freeze(draft, said, bound=bool(sizes))
    if batch is None:
        return mark_parts(graph), (None if sizes else graph)
    return (mark_parts(graph), None) if batch_used else (of_batch(graph, batch), graph)


def _freeze(draft: Draft, said: Stated, *, bound: bool) -> Graph:
    """The Graph of what the outputs need; inputs stay even when nothing reads them."""
    needed = set(draft.outputs)
    ops = []
    for op in reversed(draft.ops):
        if any(o in needed for o in op.outputs):
            ops.append(op)
            needed.update(t for t in op.inputs if t)
    ops.reverse()
    named = needed | set(draft.inputs) | {o for op in ops for o in op.outputs if o}
    tensors = {t: v for t, v in draft.tensors.items() if t in named}
    missing = [t for t in named if t not in tensors]
    if missing:
        raise InputError(f"{draft.name}: tensor '{missing[0]}' has no source.")
    inputs, outputs = tuple(draft.inputs), tuple(draft.outputs)
    origins = {t: s.origin for t in tensors if (s := draft.sources.get(t)) is not None and s.origin}
    loss = said.loss or find_loss(ops, inputs, outputs, tensors)
    return Graph(tuple(ops), tensors, inputs, outputs, draft.name, loss, origins, bound)
