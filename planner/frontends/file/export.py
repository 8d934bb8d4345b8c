"""Graph → runnable ModelProto, so that another runtime can execute the whole graph as a reference.

Operators of our own domain are written as the ONNX operators that they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from planner.frontends.file.dtypes import ELEM_TYPE
from planner.frontends.file.nodes import node_of, tensor_of
from planner.frontends.steps.draft import split_type
from planner.frontends.steps.experts import EXPERT_MATMUL, spelled_out
from planner.ir import Graph, Op, Tensor

__all__ = ["to_model"]

IR_VERSION = 10  # the oldest that has every element type in use; runtimes in the field refuse newer ones


def to_model(graph: Graph, *, outputs: Sequence[str] | None = None) -> onnx.ModelProto:
    """The graph as a model whose outputs are `outputs` (default: the graph's own; any tensor may be named).

    Tensors that no operator computes become initializers where their value is known and inputs otherwise:
    first the graph's own inputs, in order, then parameters and large constants in the order of first use.
    Operators that the outputs do not need are left out, and their inputs with them, except the graph's own.
    KeyError for an unknown output name.
    """
    wanted = tuple(graph.outputs if outputs is None else outputs)
    ops = _needed(graph, wanted)
    sources = dict.fromkeys(graph.inputs)
    for op in ops:
        sources.update(dict.fromkeys(t for t in op.inputs if t and t not in graph.producers))
    sources.update(dict.fromkeys(t for t in wanted if t not in graph.producers))
    tensors = [graph.tensors[t] for t in sources]
    own = set(graph.inputs)
    versions: dict[str, int] = {"": 1}
    for op in ops:
        domain = "" if op.type == EXPERT_MATMUL else split_type(op.type)[0]
        versions[domain] = max(versions.get(domain, 1), op.opset)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    for op in ops:
        if op.type == EXPERT_MATMUL:
            spelled, read = spelled_out(op, graph.tensors, versions[""])
            nodes += spelled
            constants += read
        else:
            nodes.append(node_of(op))
    known = {t.name for t in tensors if t.value is not None and t.name not in own}
    body = helper.make_graph(
        nodes,
        graph.name or "graph",
        [_info(t) for t in tensors if t.name not in known],
        [_info(graph.tensors[t]) for t in wanted],
        [*(tensor_of(t.value, t.name) for t in tensors if t.name in known and t.value is not None), *constants],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in sorted(versions.items())]
    return helper.make_model(body, opset_imports=imports, ir_version=IR_VERSION)


def _needed(graph: Graph, outputs: Sequence[str]) -> list[Op]:
    for o in outputs:
        graph.tensors[o]
    needed, ops = set(outputs), []
    for op in reversed(graph.ops):
        if not needed.isdisjoint(op.outputs):
            ops.append(op)
            needed.update(op.inputs)
    return ops[::-1]


def _info(t: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(t.name, ELEM_TYPE[t.dtype], t.shape)
