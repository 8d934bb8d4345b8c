"""What `onnx.checker` says of a model, and what it passes over."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from planner.errors import InputError
from planner.terminal import quoted

__all__ = ["check_rest", "first_line", "nodes_of", "subgraphs"]


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def nodes_of(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of sub-graphs included."""
    for node in graph.node:
        yield node
        for g in subgraphs(node):
            yield from nodes_of(g)


def check_rest(model: onnx.ModelProto, name: str) -> None:
    """`onnx.checker` over a copy without external data and unknown operators."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    graph = copy.graph
    declared = {i.name for i in graph.input}
    stored = [i for i in graph.initializer if i.data_location != onnx.TensorProto.EXTERNAL]
    for i in graph.initializer:
        if i.data_location == onnx.TensorProto.EXTERNAL and i.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(i.name, i.data_type, list(i.dims)))
    stored = [onnx.TensorProto.FromString(i.SerializeToString()) for i in stored]
    del graph.initializer[:]
    graph.initializer.extend(stored)
    del graph.value_info[:]
    for o in graph.output:
        if o.type.WhichOneof("value") in (None, "tensor_type") and not o.type.tensor_type.HasField("shape"):
            # Exporters leave types of outputs out; inference finds them.
            o.type.tensor_type.elem_type = o.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
            o.type.tensor_type.shape.SetInParent()
    versions = {o.domain: o.version for o in copy.opset_import}
    for node in nodes_of(graph):
        for t in (t for g in subgraphs(node) for t in g.initializer):
            if t.data_location == onnx.TensorProto.EXTERNAL:
                t.CopyFrom(onnx.TensorProto(name=t.name, data_type=onnx.TensorProto.FLOAT, dims=[0]))
        for a in node.attribute:
            if a.type == onnx.AttributeProto.TENSOR and a.t.data_location == onnx.TensorProto.EXTERNAL:
                a.t.CopyFrom(onnx.TensorProto(name=a.t.name, data_type=onnx.TensorProto.FLOAT, dims=[0]))
        if node.domain in ("", "ai.onnx"):
            version = versions.get("", versions.get("ai.onnx", 1))
            if not onnx.defs.has(node.op_type, version, ""):
                _check_operands(node, name)
                node.domain = "unregistered"  # the checker passes over domains it does not know
    copy.opset_import.add(domain="unregistered", version=1)
    try:
        onnx.checker.check_model(copy)
    except onnx.checker.ValidationError as error:
        raise InputError(f"{name}: not a valid ONNX model: {first_line(error)}") from None


def _check_operands(node: onnx.NodeProto, name: str) -> None:
    """Of an operator that only other versions of the operator set know, which the checker passes over."""
    if not onnx.defs.has(node.op_type, onnx.defs.onnx_opset_version(), ""):
        return
    schema = onnx.defs.get_schema(node.op_type, onnx.defs.onnx_opset_version(), "")
    if not schema.min_input <= len(node.input) <= schema.max_input:
        most = "" if schema.max_input == schema.min_input else f" to {schema.max_input}"
        raise InputError(
            f"{name}: {node.op_type} {quoted(node.name)} has {len(node.input)} operands; expected {schema.min_input}"
            f"{most}. Export the model again."
        )


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return " ".join(text.split())[:600]
