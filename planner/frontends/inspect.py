"""What a graph holds, as plain data for `planner inspect`."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from planner.frontends.blocks import repeated_blocks
from planner.frontends.draft import split_type
from planner.ir import Graph, Op, Role, Tensor

__all__ = ["flops", "inspect_graph"]


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
                "first": run.blocks[0][0],
                "module": _common_module([graph.op(name).module for name in run.blocks[0]]),
            }
            for run in repeated_blocks(graph)
        ],
    }


def flops(graph: Graph, op: Op) -> int:
    """Floating-point operations of matrix products, convolutions, attention and recurrence; 0 for others.

    A multiply-add counts two.  Zero, too, where a shape depends on data.
    """
    shapes = [graph.tensors[t].shape if t else None for t in op.inputs]
    out = graph.tensors[op.outputs[0]].shape if op.outputs[0] else None
    if not shapes or shapes[0] is None:
        return 0
    name = split_type(op.type)[1]
    first, second = shapes[0], shapes[1] if len(shapes) > 1 else None
    if name in ("MatMul", "MatMulInteger", "FusedMatMul", "Gemm", "QLinearMatMul") and out is not None and first:
        transposed = op.attributes.get("transA", 0) and len(first) > 1
        return 2 * math.prod(out) * (first[-2] if transposed else first[-1])
    if name == "ExpertMatMul" and out is not None:
        return 2 * math.prod(out) * first[-1]
    if name in ("Conv", "ConvInteger", "QLinearConv") and out is not None:
        weight = second if name != "QLinearConv" else shapes[3]
        return 0 if weight is None else 2 * math.prod(out) * math.prod(weight[1:])
    if name == "ConvTranspose" and second is not None:
        return 2 * math.prod(first) * math.prod(second[1:])
    if name == "ConvGrad" and second is not None and len(shapes) > 2 and shapes[2] is not None:
        directions = sum(bool(o) for o in op.outputs[:2])
        return 2 * directions * math.prod(first) * math.prod(shapes[2][1:])
    if name == "Einsum" and all(s is not None for s in shapes):
        return _einsum(op, [s for s in shapes if s is not None])
    if name == "Attention" and second is not None and len(first) == 4 and len(second) == 4:
        value = shapes[2] or second
        return 2 * math.prod(first[:3]) * second[2] * (first[3] + value[-1])
    if name in ("LSTM", "GRU", "RNN") and second is not None and shapes[2] is not None and len(first) == 3:
        return 2 * first[0] * first[1] * (math.prod(second) + math.prod(shapes[2]))
    return 0


def _einsum(op: Op, shapes: list[tuple[int, ...]]) -> int:
    terms = str(op.attributes.get("equation", "")).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=False):
        if "." in term:
            return 0
        sizes.update(zip(term, shape, strict=False))
    return (2 if len(shapes) > 1 else 1) * math.prod(sizes.values())


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
