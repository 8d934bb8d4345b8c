"""A model with the plan as multi-device annotations (ONNX IR 11, docs/proposals/ONNXMultiDeviceProposal.md).

Every node says how its tensors lie: the dimensions that are divided, with their shards, and for every shard, in
row-major order of those dimensions, the device that holds it, or a negative key of a group of devices that all do.
Devices count stage by stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import onnx

from planner.emit.emission import Emission
from planner.emit.onnx.check import stated_shapes
from planner.errors import InputError
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning.document import PlanDocument

__all__ = ["CONFIGURATION", "annotated", "emit_onnx", "sharding_spec"]

CONFIGURATION = "plan"
_LEAST_IR = 11


@dataclass(slots=True)
class _Lost:
    pending: int = 0
    ambiguous: int = 0
    nodes: int = 0


def emit_onnx(model: onnx.ModelProto, plan: PlanDocument, graph: Graph) -> Emission:
    """`model` as read from its file, `graph` as imported from it for the plan."""
    found, lost = annotated(model, plan, graph)
    left_out = []
    if lost.nodes:
        left_out.append(f"{lost.nodes} nodes that the importer replaced or folded have no annotation")
    if plan.schedule.pass_order != "1f1b":
        left_out.append(
            f"the order of micro-batches ({plan.schedule.order}), and which chunk of its stage a node is in"
        )
    if lost.pending:
        left_out.append(
            f"{lost.pending} results are pending sums, which the annotations cannot express: they have none"
        )
    if lost.ambiguous:
        left_out.append(f"{lost.ambiguous} tensors are read in two layouts by one node: the first is annotated")
    left_out.append(
        "gradients, the optimizer's state and redistributions: a backend inserts what it needs between nodes"
    )
    return Emission({"model.onnx": found.SerializeToString(deterministic=True)}, tuple(left_out))


def annotated(model: onnx.ModelProto, plan: PlanDocument, graph: Graph) -> tuple[onnx.ModelProto, _Lost]:
    """A copy of the model with annotations, and what could not be said."""
    mesh, stages, lost = plan.mesh, plan.schedule.stages, _Lost()
    stated = stated_shapes(model.graph)
    out = onnx.ModelProto()
    out.CopyFrom(model)
    out.ir_version = max(out.ir_version, _LEAST_IR)
    del out.configuration[:]
    devices = mesh.devices * stages
    out.configuration.add(name=CONFIGURATION, num_devices=devices, device=[f"rank{r}" for r in range(devices)])
    for node in out.graph.node:
        del node.device_configurations[:]
        name = next((o for o in node.output if o), "")
        operator = plan.operators.get(name)
        if operator is None or name not in graph.producers:
            lost.nodes += 1
            continue
        op = graph.producers[name]
        annotated = node.device_configurations.add(configuration_id=CONFIGURATION)
        if stages > 1:
            annotated.pipeline_stage = operator.stage
        said: dict[str, Layout] = {}
        pairs = [*zip(op.inputs, operator.operands, strict=False), *zip(op.outputs, operator.results, strict=False)]
        own = {*node.input, *node.output}
        for tensor, document in pairs:
            shape = graph.tensors[tensor].shape if tensor in own and tensor else None
            if document is None or shape is None:
                continue
            layout = document.layout()
            if layout.partial:
                lost.pending += 1
            elif said.setdefault(tensor, layout) != layout:
                lost.ambiguous += 1
            elif tensor not in {s.tensor_name for s in annotated.sharding_spec}:
                spec = sharding_spec(tensor, layout, shape, mesh, operator.stage * mesh.devices)
                annotated.sharding_spec.append(_as_stated(spec, stated.get(tensor, ())))
    return out, lost


def sharding_spec(
    tensor: str, layout: Layout, shape: tuple[int, ...], mesh: DeviceMesh, first: int = 0
) -> onnx.ShardingSpecProto:
    """How a tensor lies on the devices from `first` on.  InputError where it does not divide."""
    try:
        local = layout.local_shape(shape, mesh)
    except ValueError as e:
        raise InputError(f"plan: tensor {tensor}: {e}") from e
    split = [d for d in range(len(shape)) if mesh.size(layout.dims[d]) > 1]
    holders = _holders(layout, mesh)
    spec = onnx.ShardingSpecProto(tensor_name=tensor)
    for d in split:
        dim, parts = spec.sharded_dim.add(axis=d), layout.parts_of(d)
        if parts > 1:  # a sequence of sharding specifications: the dimension is seen as (parts, size of one)
            dim.simple_sharding.add(dim_value=parts, num_shards=1)
        dim.simple_sharding.add(dim_value=shape[d] // parts, num_shards=shape[d] // local[d])
    shards = product(*(range(mesh.size(layout.dims[d])) for d in split))
    for key, shard in enumerate(shards, 1):
        ranks = [first + r for r in holders[shard]]
        if len(ranks) == 1:
            spec.device.append(ranks[0])
        else:
            spec.device.append(-key)
            spec.index_to_device_group_map.add(key=-key, value=ranks)
    return spec


def _as_stated(spec: onnx.ShardingSpecProto, shape: Sequence[int | None]) -> onnx.ShardingSpecProto:
    """With sizes as the file states them, where a plan for another batch rebinds them."""
    for dim in spec.sharded_dim:
        size = shape[dim.axis] if dim.axis < len(shape) else None
        for part in dim.simple_sharding:
            if size is not None and size % part.num_shards:
                raise InputError(
                    f"plan: tensor {spec.tensor_name}: {part.num_shards} shards do not divide dimension {dim.axis} of "
                    f"size {size}, as the model states it; give the model of the batch that was planned"
                )
            if size is not None:
                part.dim_value = size
    return spec


@lru_cache(maxsize=1024)
def _holders(layout: Layout, mesh: DeviceMesh) -> Mapping[tuple[int, ...], list[int]]:
    """Index of a shard along the divided dimensions → the ranks that hold it.  A few layouts serve all tensors."""
    counts = tuple(mesh.size(d) for d in layout.dims)
    split = [d for d, n in enumerate(counts) if n > 1]
    out: dict[tuple[int, ...], list[int]] = {}
    for rank in range(mesh.devices):
        region = Layout(layout.dims).region(counts, mesh, rank)
        out.setdefault(tuple(region[d].start for d in split), []).append(rank)
    return out
