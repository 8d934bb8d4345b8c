"""For MindSpore's hybrid mode, where users slice parameters and insert collectives themselves: which and where.

A parameter marked `layerwise_parallel` may differ on every rank, and its gradient is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template
from typing import Final

from planner.emit.names import Name, plain
from planner.emit.wording import literal
from planner.planning.document import PlanDocument, RedistributionDocument

__all__ = ["hybrid_text"]

_PRIMITIVES: Final = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AlltoAll",
    "permute": "NeighborExchange",
}

_MODULE: Final = Template('''"""$model on $devices devices in hybrid_parallel mode: slices, and collectives to insert.

    mark(network)               # MindSpore then sums no gradient by itself
    group_of("x", get_rank())   # the ranks that communicate over an axis of the plan's mesh

In this mode MindSpore would sum gradients over all ranks alike, whatever they hold; so every parameter is marked, and
the sums are among COLLECTIVES, as the plan has them.
Made by `planner emit --target mindspore`; the plan decides, edit that.
"""

# Parameter -> axes of the mesh that slice each dimension; a rank holds the slice at its place along them.
SLICED = $sliced

# In order: (parameter, or tensor of the ONNX graph; forward or gradient; operator that reads it alone, or "";
# [(primitive, axes of the mesh, dimension, second dimension of an exchange)]).
COLLECTIVES = $collectives

# Operator -> collectives inside it, as of statistics over a divided dimension: (primitive, axes, pass, how many).
INSIDE = $inside

# Axes of the mesh -> groups of ranks within one pipeline stage, for mindspore.communication.create_group.
GROUPS = $groups


def mark(network):
    """Marks all parameters as different on every rank.  KeyError where the network lacks one that is sliced."""
    found = {p.name: p for p in network.get_parameters()}
    missing = [n for n in SLICED if n not in found]
    if missing:
        raise KeyError(f"the network has no parameter {missing[0]!r}; emit with --names that agree")
    for parameter in found.values():
        parameter.layerwise_parallel = True


def group_of(axes, rank):
    """The ranks that `rank` communicates with over these axes of the mesh, joined by dots."""
    stage = rank // $per_stage * $per_stage
    return next([stage + r for r in g] for g in GROUPS[axes] if rank - stage in g)
''')


def hybrid_text(plan: PlanDocument, names: Mapping[str, Name]) -> str:
    """The module; empty where nothing is communicated but gradients of whole parameters, and sums that make single
    numbers, as the loss: MindSpore's data parallelism does that."""
    sliced = {}
    for name, p in plan.parameters.items():
        layout, emitted = p.stored.layout(), names[name]
        if any(layout.dims):
            sliced[emitted.name] = layout.dims[::-1] if emitted.transposed else layout.dims
    collectives = [c for r in plan.redistributions if (c := _collective(r, names))]
    inside = {
        n: [(_PRIMITIVES[c.kind], ".".join(c.axes), "gradient" if c.backward else "forward", c.count) for c in o.inner]
        for n, o in plan.operators.items()
        if o.inner
    }
    if not sliced and not _beyond_data_parallelism(plan):
        return ""
    used = {axes for _, _, _, steps in collectives for _, axes, _, _ in steps}
    used |= {axes for found in inside.values() for _, axes, _, _ in found}
    groups = plan.meshes[plan.stages[0].mesh].groups
    text = _MODULE.substitute(
        model=plain(plan.model.name),
        devices=plan.devices,
        sliced=literal(sliced),
        collectives=literal(collectives),
        inside=literal(inside),
        groups=literal({a: g for a, g in groups.items() if a in used}),
        per_stage=plan.mesh.devices,
    )
    compile(text, "hybrid.py", "exec")  # names are data in it, never code
    return text


def _beyond_data_parallelism(plan: PlanDocument) -> bool:
    """Whether anything else is communicated, between operators or, as statistics of a batch, inside of one."""
    between = (
        bool(r.target.dims) and not (r.direction == "gradient" and r.tensor in plan.parameters)
        for r in plan.redistributions
        if any(s.kind in _PRIMITIVES for s in r.steps)
    )
    inside = (any(r is not None and r.dims for r in o.results[:1]) for o in plan.operators.values() if o.inner)
    return any(between) or any(inside)


def _collective(
    r: RedistributionDocument, names: Mapping[str, Name]
) -> tuple[str, str, str, list[tuple[str, str, int, int]]] | None:
    emitted = names.get(r.tensor, Name(r.tensor))

    def dim(d: int) -> int:
        return 1 - d if emitted.transposed and d >= 0 else d

    steps = [
        (_PRIMITIVES[s.kind], ".".join(s.axes), dim(s.dim), dim(s.to_dim)) for s in r.steps if s.kind in _PRIMITIVES
    ]
    return (emitted.name, r.direction, r.reader, steps) if steps else None
