"""Whether multi-device annotations mean something: ONNX's own checker does not look at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import onnx

__all__ = ["annotation_problems", "stated_shapes"]

_MANY: Final = 1 << 62
_MOST_SPARE: Final = 1024

Shapes = Mapping[str, list[int | None]]


def annotation_problems(model: onnx.ModelProto) -> list[str]:
    """What is wrong, each naming node, tensor and field; nothing where all is well."""
    out = []
    devices: dict[str, int] = {}
    for c in model.configuration:
        if not c.name or c.name in devices:
            out.append(f"configuration {c.name!r}: expected a name of its own")
        if c.num_devices < 1 or (c.device and len(c.device) != c.num_devices):
            out.append(f"configuration {c.name!r}: {c.num_devices} devices, {len(c.device)} are named")
        devices[c.name] = c.num_devices
    annotates = any(n.device_configurations for n in model.graph.node)
    if (annotates or devices) and model.ir_version < 11:
        out.append(f"ir_version {model.ir_version}: multi-device annotations begin with 11")
    shapes = stated_shapes(model.graph)
    stages: dict[tuple[str, str], int] = {}  # (configuration, tensor) → the stage that makes it
    for node in model.graph.node:
        where = f"node {next((o for o in node.output if o), node.name)!r} ({node.op_type})"
        ids = [c.configuration_id for c in node.device_configurations]
        out += [f"{where}: configuration {i!r} is given twice" for i in set(ids) if ids.count(i) > 1]
        for c in node.device_configurations:
            if c.configuration_id not in devices:
                out.append(f"{where}: configuration {c.configuration_id!r} is not defined by the model")
                continue
            out += [f"{where}: {p}" for p in _node(node, c, devices[c.configuration_id], shapes)]
            if c.HasField("pipeline_stage"):
                out += _stage(where, node, c, stages)
    return out


def _stage(
    where: str, node: onnx.NodeProto, c: onnx.NodeDeviceConfigurationProto, stages: dict[tuple[str, str], int]
) -> Iterator[str]:
    if c.pipeline_stage < 0:
        yield f"{where}: pipeline_stage {c.pipeline_stage}: expected 0 or more"
    for t in node.input:
        made = stages.get((c.configuration_id, t), c.pipeline_stage)
        if made > c.pipeline_stage:
            yield f"{where}: pipeline_stage {c.pipeline_stage}: {t!r} is made later, in stage {made}"
    stages.update({(c.configuration_id, t): c.pipeline_stage for t in node.output})


def _node(node: onnx.NodeProto, c: onnx.NodeDeviceConfigurationProto, devices: int, shapes: Shapes) -> Iterator[str]:
    names = [s.tensor_name for s in c.sharding_spec]
    for t in set(names):
        if names.count(t) > 1:
            yield f"tensor {t!r} has {names.count(t)} specifications"
        if t not in node.input and t not in node.output:
            yield f"tensor {t!r} is none of its inputs and outputs"
    for s in c.sharding_spec:
        yield from (f"tensor {s.tensor_name!r}: {p}" for p in _spec(s, devices, shapes.get(s.tensor_name)))


def _spec(s: onnx.ShardingSpecProto, devices: int, shape: list[int | None] | None) -> Iterator[str]:
    groups: dict[int, list[int]] = {}
    for entry in s.index_to_device_group_map:
        if entry.key in groups or entry.key >= 0:
            yield f"device group {entry.key}: expected negative keys, each once"
        groups[entry.key] = list(entry.value)
    held: list[int] = []
    for d in s.device:
        if d < 0 and d not in groups:
            yield f"device {d}: no such group"
        held += groups.get(d, []) if d < 0 else [d]
        if len(held) > max(devices, 0) + _MOST_SPARE:  # so one holds more than one shard; no need to list them all
            break
    if any(not 0 <= d < devices for d in held):
        yield f"devices {sorted({d for d in held if not 0 <= d < devices})}: the configuration has {devices}"
    if len(set(held)) != len(held):
        yield "a device holds more than one shard"
    axes, shards = [], 1
    rank = None if shape is None else len(shape)
    for dim in s.sharded_dim:
        axis = dim.axis
        if rank is not None and not -rank <= axis < rank:
            yield f"axis {axis}: the tensor has {rank} dimensions"
            continue
        axes.append(axis % rank if rank else axis)
        counts = [x.num_shards for x in dim.simple_sharding]
        if not counts or min(counts) < 1:
            yield f"axis {axis}: expected shards of at least 1, found {counts}"
            continue
        parts = _product(counts)
        shards = _product([shards, parts])
        size = shape[axes[-1]] if shape is not None else None
        if size is not None and parts > size:
            yield f"axis {axis}: {parts} shards of {size} elements"
        for x in dim.simple_sharding:
            if x.HasField("dim_value") and size is not None and len(counts) == 1 and x.dim_value != size:
                yield f"axis {axis}: says it has {x.dim_value} elements, the tensor has {size}"
    if len(set(axes)) != len(axes):
        yield "an axis is divided twice"
    if len(s.device) != shards:
        yield f"{shards} shards on {len(s.device)} devices or groups"


def _product(counts: list[int]) -> int:
    """The product, or something larger than any number of devices."""
    out = 1
    for n in counts:
        out = min(out * n, _MANY)
    return out


def stated_shapes(graph: onnx.GraphProto) -> dict[str, list[int | None]]:
    """Shapes as far as the model says them."""
    out: dict[str, list[int | None]] = {t.name: list(t.dims) for t in graph.initializer}
    for v in (*graph.input, *graph.output, *graph.value_info):
        if v.type.tensor_type.HasField("shape"):
            dims = v.type.tensor_type.shape.dim
            out[v.name] = [d.dim_value if d.HasField("dim_value") else None for d in dims]
    return out
