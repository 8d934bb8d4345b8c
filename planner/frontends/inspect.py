"""What a graph holds, as plain data for `planner inspect`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from planner.frontends.facts.flops import flops
from planner.frontends.resized.blocks import repeated_blocks
from planner.frontends.steps.draft import split_type
from planner.ir import Graph, Role, Tensor

__all__ = ["inspect_graph"]


def inspect_graph(graph: Graph) -> dict[str, Any]:
    """JSON-able summary: parameters, FLOPs of products and convolutions, operators, blocks, inputs, outputs."""
    parameters = list(graph.parameters)
    opsets: dict[str, int] = {}
    for op in graph.ops:
        domain = split_type(op.type)[0] or "ai.onnx"
        opsets[domain] = max(opsets.get(domain, 0), op.opset)
    return {
        "name": graph.name,
        "digest": graph.digest,
        "operators": len(graph.ops),
        "operator_types": dict(Counter(op.type for op in graph.ops).most_common()),
        "opsets": opsets,
        "parameters": {
            "tensors": len(parameters),
            "elements": sum(t.elements for t in parameters),
            "bytes": sum(t.stored_bytes for t in parameters),
            "frozen": sum(t.elements for t in parameters if t.frozen),
        },
        "flops": sum(flops(graph, op) for op in graph.ops),
        "inputs": [_describe(graph.tensors[t]) for t in graph.inputs if graph.tensors[t].role is Role.INPUT],
        "outputs": [_describe(graph.tensors[t]) for t in graph.outputs],
        "loss": graph.loss,
        "unresolved_shapes": [t.name for t in graph.tensors.values() if t.shape is None],
        "repeated_blocks": [
            {
                "count": run.count,
                "operators": run.size,
                "first": run.blocks[0][run.feeders],
                "module": _common_module([graph.op(name).module for name in run.blocks[0]]),
            }
            for run in repeated_blocks(graph)
        ],
    }


def _describe(t: Tensor) -> dict[str, Any]:
    return {"name": t.name, "shape": None if t.shape is None else list(t.shape), "dtype": t.dtype}


def _common_module(modules: list[str]) -> str:
    """Longest dotted path that most of the block's operators share."""
    paths = [m.split(".") for m in modules if m]
    if not paths:
        return ""
    prefix: list[str] = []
    for depth in range(max(map(len, paths))):
        name, votes = Counter(tuple(p[: depth + 1]) for p in paths if len(p) > depth).most_common(1)[0]
        if 2 * votes <= len(paths):
            break
        prefix = list(name)
    return ".".join(prefix)
