"""`parallel_plan.json` of `planner emit --target dtensor` as constraints of our search: the DTensor placements of
parameters and inputs, and the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from planner.emit.modules import owner
from planner.emit.names import Name, NameRules
from planner.emit.placed import Placed, mesh_of, pinned, read_json, whole_number
from planner.emit.reading import Reading, places_of, shapes_of
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout

__all__ = ["read_placements"]

_SCHEMA: Final = "planner.dtensor/1"
_FORMERLY: Final = "planner.torch/1"  # of files that were written as `--target torch`


def read_placements(path: Path, graph: Graph, rules: NameRules) -> Reading:
    """InputError where the file is none of this schema, or does not fit the graph."""
    source = str(path)
    document = read_json(path, "a parallel_plan.json of `planner emit --target dtensor`")
    if document.get("schema") not in (_SCHEMA, _FORMERLY):
        raise InputError(f"{source}: expected schema {_SCHEMA!r}, found {document.get('schema')!r:.80}")
    sizes = _object(source, "mesh", document.get("mesh")).get("sizes")
    if not isinstance(sizes, list):
        raise InputError(f"{source}: mesh: sizes: expected a list of numbers, found {sizes!r:.80}")
    mesh = mesh_of(f"{source}: mesh", [whole_number(f"{source}: mesh: sizes", s) for s in sizes])
    names = rules.apply(shapes_of(graph), places_of(graph))
    layouts = _object(source, "parameters", document.get("parameters"))
    lacking = [name.name for name in names.values() if name.name not in layouts]
    if lacking:
        raise InputError(
            f"{source}: parameter {lacking[0]!r} is not in it; it has {', '.join(list(layouts)[:6])}, …; say with "
            "--names what the file calls the model's parameters"
        )
    compute: dict[str, Layout] = {}
    stored: dict[str, Layout] = {}
    for n, name in names.items():
        entry = _object(source, f"parameter {name.name!r}", layouts[name.name])
        for key, out in (("computed", compute), ("kept", stored)):
            out[n] = _layout(f"{source}: parameter {name.name!r}: {key}", entry.get(key), graph, n, mesh, name)
    inputs: dict[str, Layout] = {}
    unused: list[str] = []
    for n, dims in _object(source, "inputs", document.get("inputs", {})).items():
        if n in graph.inputs and n in graph.consumers:
            inputs[n] = _layout(f"{source}: input {n!r}", dims, graph, n, mesh, None)
        else:
            unused.append(f"input {n}, which the model has not")
    listed = {name.name for name in names.values()}
    unused += [f"parameter {n}, which the model has not" for n in layouts if n not in listed]
    modules = document.get("modules")
    if modules:
        unused.append(f"data at the ends of {len(_object(source, 'modules', modules))} modules")
    data = tuple(dict.fromkeys(a for x in inputs.values() if x.dims for a in x.dims[0]))
    placed = Placed(mesh, compute, stored, inputs, data)
    stages = _stages(source, document.get("pipeline"), names)
    parts = None if document.get("pipeline") is None else document["pipeline"].get("micro_batches")
    if parts is not None:
        parts = whole_number(f"{source}: pipeline: micro_batches", parts)
    return Reading(pinned(placed, graph, source), mesh, tuple(unused), stages=stages, micro_batches=parts)


def _object(source: str, what: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{source}: {what}: expected an object, found {value!r:.80}")
    return value


def _layout(where: str, entry: object, graph: Graph, n: str, mesh: DeviceMesh, name: Name | None) -> Layout:
    """Placements, a dimension or null for every mesh axis, in the graph's orientation."""
    rank = len(graph.tensors[n].shape or ())
    if not isinstance(entry, list) or len(entry) != len(mesh.axes):
        raise InputError(
            f"{where}: expected a dimension or null for each of {len(mesh.axes)} axes, found {entry!r:.80}"
        )
    dims: list[list[str]] = [[] for _ in range(rank)]
    for axis, d in zip(mesh.names, entry, strict=True):
        if d is None:
            continue
        if isinstance(d, bool) or not isinstance(d, int) or not 0 <= d < rank:
            raise InputError(f"{where}: expected dimensions 0 to {rank - 1} or null, found {d!r:.80}")
        dims[d].append(axis)
    return Layout(tuple(tuple(d) for d in (dims[::-1] if name is not None and name.transposed else dims)))


def _stages(source: str, section: object, names: Mapping[str, Name]) -> dict[str, int]:
    """Parameter → stage, of those that are in one alone."""
    if section is None:
        return {}
    pipeline = _object(source, "pipeline", section)
    count = whole_number(f"{source}: pipeline: stages", pipeline.get("stages"))
    stage_of = _object(source, "pipeline: stage_of", pipeline.get("stage_of"))
    shared = pipeline.get("shared", [])
    if not isinstance(shared, list):
        raise InputError(f"{source}: pipeline: shared: expected a list of names, found {shared!r:.80}")
    out = {}
    for n, name in names.items():
        stage = stage_of.get(owner(name.name))
        if stage is None or name.name in shared:
            continue
        if whole_number(f"{source}: pipeline: stage_of {owner(name.name)!r}", stage, 0) >= count:
            raise InputError(f"{source}: pipeline: stage_of {owner(name.name)!r}: is {stage}, of {count} stages")
        out[n] = stage
    found = sorted(set(out.values()))
    if found != list(range(count)):
        raise InputError(f"{source}: pipeline: expected parameters in each of {count} stages, found {found}")
    return out
