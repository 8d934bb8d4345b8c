"""A rank's nodes as a model, without what nothing reads."""

from __future__ import annotations

import onnx
from onnx import helper

from planner.emit.onnx.domain import DOMAIN, VERSION
from planner.emit.onnx.ranks.rank import RankGraph, versions
from planner.frontends.file.checker import subgraphs
from planner.frontends.file.dtypes import ELEM_TYPE
from planner.frontends.file.export import IR_VERSION
from planner.frontends.file.parse import captured

__all__ = ["model_of"]


def model_of(rank: RankGraph) -> onnx.ModelProto:
    """The model; `rank.stored` is left with what it holds."""
    w = rank.writer
    nodes = _needed(w.nodes, set(rank.outputs))
    for k, node in enumerate(n for n in nodes if n.domain == DOMAIN):
        node.name = f"collective_{k}"  # those that meet are called alike
    read = {t for n in nodes for t in n.input} | set(rank.outputs)
    for n in nodes:
        read |= _captured(n)
    rank.stored = {n: h for n, h in rank.stored.items() if n in read}
    order = {n: i for i, n in enumerate(rank.graph.inputs)}  # the model's own inputs first
    made = [o for n in nodes for o in n.output if o and o not in rank.outputs]
    graph = helper.make_graph(
        nodes,
        f"{rank.graph.name or 'graph'} rank {rank.rank}",
        [_info(rank, n) for n in sorted(rank.inputs, key=lambda n: order.get(rank.inputs[n].tensor, len(order)))],
        [_info(rank, n) for n in rank.outputs],
        [t for n, t in w.constants.items() if n in read],
        value_info=[_info(rank, n) for n in made if n in w.values],
    )
    imports = dict(versions(rank.graph))
    used = {n.domain for n in nodes}
    opsets = [helper.make_opsetid(d, v) for d, v in sorted(imports.items()) if not d or d in used]
    model = helper.make_model(graph, opset_imports=[*opsets, helper.make_opsetid(DOMAIN, VERSION)],
                              ir_version=IR_VERSION, producer_name="planner")  # fmt: skip
    helper.set_model_props(model, {"planner.rank": str(rank.rank), "planner.devices": str(rank.mesh.devices)})
    return model


def _needed(nodes: list[onnx.NodeProto], outputs: set[str]) -> list[onnx.NodeProto]:
    """Nodes that an output or a collective needs.  Collectives stay, read or not: the other ranks wait for them."""
    needed, reached = set(outputs), []
    for node in reversed(nodes):
        if node.domain == DOMAIN or any(o in needed for o in node.output):
            reached.append(node)
            needed.update(node.input)
            needed.update(_captured(node))
    return reached[::-1]


def _captured(node: onnx.NodeProto) -> set[str]:
    """Outer names that sub-graphs of the node read."""
    return set(captured(list(subgraphs(node))))


def _info(rank: RankGraph, name: str) -> onnx.ValueInfoProto:
    v = rank.writer.values[name]
    return helper.make_tensor_value_info(name, ELEM_TYPE[v.dtype], v.shape)
