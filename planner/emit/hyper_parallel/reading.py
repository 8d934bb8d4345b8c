"""A `.layout` file as constraints of our search: it decides the mesh and how parameters lie; operators, and what moves
between them, are searched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.emit.hyper_parallel.layout_file import read_layout_file
from planner.emit.mindspore.arrangement import common_mesh, layouts_of
from planner.emit.names import NameRules
from planner.emit.reading import Reading, places_of, shapes_of
from planner.errors import InputError
from planner.ir import Graph, Layout
from planner.planning.constraints import SCHEMA, parse_constraints

__all__ = ["read_layouts"]


def read_layouts(path: Path, graph: Graph, rules: NameRules) -> Reading:
    """Every parameter kept and computed with as the file has it.  InputError where it is none, or does not fit the
    graph."""
    found = read_layout_file(path)
    names = rules.apply(shapes_of(graph), places_of(graph))
    lacking = [n for n, name in names.items() if name.name not in found]
    if lacking:
        raise InputError(
            f"{path}: parameter {names[lacking[0]].name!r} is not in it; it has {', '.join(list(found)[:6])}, …; say "
            "with --names what the file calls the model's parameters"
        )
    used = {name.name: found[name.name] for name in names.values()}
    if len({p.first for p in used.values()}) > 1:
        raise InputError(f"{path}: its parameters lie on several stages; plans of one stage can be read so far")
    try:
        mesh = common_mesh(p.arrangement for p in used.values())
    except InputError as e:
        raise InputError(f"{path}: {e}") from None
    pins: list[dict[str, Any]] = []
    for n, name in names.items():
        p = used[name.name]
        shape = graph.tensors[n].shape or ()
        wanted = shape[::-1] if name.transposed else shape
        if p.shape != wanted:
            raise InputError(
                f"{path}: parameter {name.name!r} has shape {list(p.shape)}, expected {list(wanted)} of {n!r}"
            )
        layout, _ = layouts_of(p.arrangement, mesh)
        layout = Layout(layout.dims[::-1]) if name.transposed else layout
        try:
            layout.local_shape(shape, mesh)
        except ValueError as e:
            raise InputError(f"{path}: parameter {name.name!r}: {e}") from e
        pins.append({"match": n, "compute": str(layout), "stored": str(layout)})
    document = {"schema": SCHEMA, "mesh": str(mesh), "parameters": pins}
    constraints = parse_constraints(json.dumps(document), str(path), numbered=False)
    return Reading(constraints, mesh, tuple(n for n in found if n not in used), "mindspore")
