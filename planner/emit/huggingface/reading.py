"""A `DistributedConfig` of transformers as constraints of our search: degrees become the mesh, styles the layouts of
parameters, FSDP how they are stored.  What decides otherwise than the file alone (rules of the model class) is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from planner.emit.huggingface.pipeline import transformers_stage
from planner.emit.modules import layered, owner
from planner.emit.names import Name, NameRules
from planner.emit.placed import Placed, mesh_of, pinned, read_json, whole_number
from planner.emit.reading import Reading, places_of, shapes_of
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout

__all__ = ["read_distributed_config"]

_SIZES: Final = ("tp_size", "fsdp_size", "dp_replicate_size", "pp_size", "ep_size")
_PLANS: Final = ("tp_plan", "fsdp_plan", "ep_plan")
_SWITCHES: Final = (
    "enable_sequence_parallel", "enable_expert_parallel", "fsdp_cpu_offload", "fsdp_mixed_precision",
)  # fmt: skip
# Style → the dimension of a module's weight that it divides; None: none.  transformers 5.23,
# distributed/tensor_parallel.py.
_WEIGHT: Final = {
    "colwise": -2, "colwise_gather_output": -2, "colwise_rep": -2, "rowwise": -1, "rowwise_split_input": -1,
    "rowwise_rep": -1, "embedding_rowwise": 0, "embedding_colwise": 1, "replicate": None, "sequence_parallel": None,
    "replicated_with_grad_allreduce": None, "all_reduce": None, "mla_kv_a_proj": None, "local_params": None,
    "moe_identity_expert": None, "moe_tp_experts": None,
}  # fmt: skip
_PACKED: Final = ("packed_colwise", "packed_rowwise")  # parts of several matrices in one: no layout of ours
_FSDP: Final = ("free_full_weight", "keep_full_weight")


def read_distributed_config(path: Path, graph: Graph, rules: NameRules) -> Reading:
    """InputError where the file is no such config, leaves its meaning to the model class, or does not fit the graph."""
    source = str(path)
    document = read_json(path, "a distributed_config.json of transformers")
    unused: list[str] = []
    sizes = {k: _size(source, document, k) for k in _SIZES}
    plans = {k: _plan(source, document, k) for k in _PLANS}
    _check(source, document, sizes, plans, unused)
    names = rules.apply(shapes_of(graph), places_of(graph))
    degrees = [("dp_replicate_size", "data"), ("fsdp_size", "data"), ("tp_size", "tensor")]
    used = [k for k, _ in degrees if sizes[k] > 1]
    mesh = mesh_of(source, [sizes[k] for k in used] or [1])
    axis = dict(zip(used, mesh.names, strict=False))
    compute: dict[str, Layout] = {}
    stored: dict[str, Layout] = {}
    unnamed: list[str] = []
    padded: list[str] = []
    for n, name in names.items():
        layout = _computed(source, name, graph, n, plans["tp_plan"] or {}, axis.get("tp_size"), unused, unnamed)
        if layout is None:
            continue
        compute[n] = layout
        stored_layout = _stored(layout, name, graph.tensors[n].shape or (), axis.get("fsdp_size"), mesh)
        if stored_layout is None:
            padded.append(n)
        else:
            stored[n] = stored_layout
    if unnamed and "tp_size" in axis:
        unused.append(f"{len(unnamed)} parameters that tp_plan does not name ({unnamed[0]}, …) are taken as whole")
    if padded:
        unused.append(f"shards of {len(padded)} parameters that FSDP would pad ({padded[0]}, …)")
    data = tuple(axis[k] for k in ("dp_replicate_size", "fsdp_size") if k in axis)
    placed = Placed(mesh, compute, stored, _inputs(graph, mesh, data), data)
    stages = _stages(source, names, sizes["pp_size"])
    return Reading(pinned(placed, graph, source, samples=True), mesh, tuple(dict.fromkeys(unused)), stages=stages)


def _size(source: str, document: Mapping[str, Any], key: str) -> int:
    value = document.get(key)
    return 1 if value is None else whole_number(f"{source}: {key}", value)


def _plan(source: str, document: Mapping[str, Any], key: str) -> dict[str, str] | None:
    plan = document.get(key)
    if plan == "auto" and key == "tp_plan":
        return None
    if plan is not None and (not isinstance(plan, dict) or not all(isinstance(v, str) for v in plan.values())):
        raise InputError(f"{source}: {key}: expected an object of styles, found {plan!r:.80}")
    return plan


def _check(
    source: str,
    document: Mapping[str, Any],
    sizes: Mapping[str, int],
    plans: Mapping[str, dict[str, str] | None],
    unused: list[str],
) -> None:
    """What the file must say, and what of it says nothing to us."""
    if not any(k in document for k in (*_SIZES, *_PLANS)):
        raise InputError(f"{source}: has none of {', '.join(_SIZES)}; expected a DistributedConfig of transformers")
    if document.get("tp_plan") is not None and document.get("tp_size") is None:
        raise InputError(f"{source}: tp_size: is left to the number of processes; write it into the file")
    if sizes["tp_size"] > 1 and plans["tp_plan"] is None:
        raise InputError(
            f"{source}: tp_plan: is left to the model class; write its rules (model.tp_plan) into the file"
        )
    if sizes["ep_size"] > 1 or document.get("enable_expert_parallel") is True:
        raise InputError(f"{source}: ep_size: experts divided among ranks are not read; leave it out to plan the rest")
    if sizes["pp_size"] > 1 and sizes["fsdp_size"] * sizes["dp_replicate_size"] > 1:
        raise InputError(f"{source}: pp_size: transformers does not combine it with FSDP; expected one of them alone")
    for module, style in (plans["tp_plan"] or {}).items():
        if style not in _WEIGHT and style not in _PACKED:
            raise InputError(f"{source}: tp_plan: {module}: {style!r} is no style of transformers")
    for module, style in (plans["fsdp_plan"] or {}).items():
        if style not in _FSDP:
            raise InputError(f"{source}: fsdp_plan: {module}: expected {' or '.join(_FSDP)}, found {style!r}")
    for key in _SWITCHES:
        if not isinstance(document.get(key, False), bool | None):
            raise InputError(f"{source}: {key}: expected true or false, found {document[key]!r:.80}")
        if document.get(key):
            unused.append(key)
    if plans["ep_plan"]:
        unused.append("ep_plan (ep_size is 1)")
    freed = [m for m, s in (plans["fsdp_plan"] or {}).items() if s == "free_full_weight"]
    if freed and sizes["fsdp_size"] > 1:
        unused.append(f"free_full_weight of {', '.join(freed[:3])}: plans gather once and keep")
    known = (*_SIZES, *_PLANS, *_SWITCHES, "ep_implementation")
    unused += [f"{k} (no field of DistributedConfig)" for k in document if k not in known]


def _computed(
    source: str,
    name: Name,
    graph: Graph,
    n: str,
    plan: Mapping[str, str],
    axis: str | None,
    unused: list[str],
    unnamed: list[str],
) -> Layout | None:
    """In the graph's orientation; None where it is none of ours."""
    rank = len(graph.tensors[n].shape or ())
    whole = Layout.replicated(rank)
    style = plan.get(layered(name.name)) or plan.get(layered(owner(name.name)))
    if style is None:
        unnamed.append(n)
    if axis is None or style is None:
        return whole
    if style in _PACKED:
        unused.append(f"{style} of {layered(owner(name.name))}")
        return None
    at = _WEIGHT[style]
    if at is None or (style.startswith("rowwise") and name.name.endswith(".bias")):
        return whole
    place = max(at, -rank) % max(rank, 1) if at < 0 else at
    if place >= rank:
        raise InputError(f"{source}: tp_plan: {style} of {name.name!r}, which has {rank} dimensions")
    dims = [(axis,) if d == place else () for d in range(rank)]
    return Layout(tuple(dims[::-1] if name.transposed else dims))


def _stored(compute: Layout, name: Name, shape: tuple[int, ...], axis: str | None, mesh: DeviceMesh) -> Layout | None:
    """FSDP cuts the first dimension of the network's tensor, within what tensor parallelism leaves of it; our axes nest
    in the order of the mesh, so that a rank's shard has the same size.  None where it does not divide."""
    if axis is None or not shape:
        return compute
    first = len(shape) - 1 if name.transposed else 0
    dims = [(axis, *d) if i == first else d for i, d in enumerate(compute.dims)]
    layout = Layout(tuple(dims))
    try:
        layout.local_shape(shape, mesh)
    except ValueError:
        return None
    return layout


def _inputs(graph: Graph, mesh: DeviceMesh, data: tuple[str, ...]) -> dict[str, Layout]:
    """Ranks that shard or replicate parameters have samples of their own: what counts them is divided."""
    shapes = {n: graph.tensors[n].shape or () for n in graph.inputs if n in graph.consumers}
    batch = next((s[0] for s in shapes.values() if s and s[0] > 1), 1)
    if not data or batch % mesh.size(data):
        return {}
    return {n: Layout((data, *[()] * (len(s) - 1))) for n, s in shapes.items() if s and s[0] == batch}


def _stages(source: str, names: Mapping[str, Name], stages: int) -> dict[str, int]:
    if stages == 1:
        return {}
    layer = {}
    for n, name in names.items():
        parts = name.name.split(".")
        at = parts.index("layers") + 1 if "layers" in parts[:-1] else 0
        if at and parts[at].isdecimal() and len(parts[at]) < 9:
            layer[n] = int(parts[at])
    count = max(layer.values(), default=-1) + 1
    if count < stages:
        raise InputError(f"{source}: pp_size: {stages} stages of {count} modules `layers.N`; name them with --names")
    return {n: transformers_stage(layer.get(n), name.name, count, stages) for n, name in names.items()}
