"""Weights that sub-graphs hold become initializers of the whole graph, which the sub-graphs capture.

Control flow hides what it holds: initializers of a branch, and `Constant` nodes inside it, are no tensors of the
graph, have no layout and take no memory.  What may be a weight (a tensor of at least two elements that is not of a
type of indices) moves up, as the initializer it would be without the control flow.  Names are unique in a graph and
its sub-graphs together, so that most keep theirs; one that is taken gets a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx

from planner.frontends.file.checker import nodes_of, subgraphs
from planner.frontends.file.dtypes import dtype_name

__all__ = ["hoist_weights"]

_INDICES = frozenset({"int64", "int32", "bool", "string", "uint64", "uint32"})


def hoist_weights(model: onnx.ModelProto) -> None:
    """Moves weights out of the sub-graphs of `model`, in place."""
    graph = model.graph
    outer = [g for node in graph.node for g in subgraphs(node)]
    if not outer:
        return
    taken = {t.name for t in (*graph.initializer, *graph.input)} | {o for n in graph.node for o in n.output}
    for g in outer:
        _hoist(g, graph, taken)


def _hoist(g: onnx.GraphProto, top: onnx.GraphProto, taken: set[str]) -> None:
    results = {o.name for o in g.output}
    renamed: dict[str, str] = {}
    initializers, nodes = [], []
    for t in g.initializer:
        if t.name not in results and _may_be_weight(t):
            renamed[t.name] = _move(t, t.name, top, taken)
        else:
            initializers.append(t)
    for node in g.node:
        value = _value_of(node)
        if value is not None and node.output[0] not in results and _may_be_weight(value):
            renamed[node.output[0]] = _move(value, node.output[0], top, taken)
        else:
            nodes.append(node)
    for node in nodes:
        for inner in subgraphs(node):
            _hoist(inner, top, taken)
    if renamed:
        _rename(nodes, renamed)
        for field, source in ((g.initializer, initializers), (g.node, nodes)):
            copies = [type(x).FromString(x.SerializeToString()) for x in source]
            del field[:]
            field.extend(copies)


def _rename(nodes: Iterable[onnx.NodeProto], renamed: dict[str, str]) -> None:
    changed = {old: new for old, new in renamed.items() if old != new}
    if not changed:
        return
    for node in nodes:
        inside = [n for g in subgraphs(node) for n in nodes_of(g)]
        for n in (node, *inside):
            for k, name in enumerate(n.input):
                if name in changed:
                    n.input[k] = changed[name]


def _move(t: onnx.TensorProto, name: str, top: onnx.GraphProto, taken: set[str]) -> str:
    fresh, n = name, 1
    while fresh in taken:
        fresh, n = f"{name}_{n}", n + 1
    taken.add(fresh)
    moved = top.initializer.add()
    moved.CopyFrom(t)
    moved.name = fresh
    return fresh


def _value_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return None
    return next((a.t for a in node.attribute if a.name == "value"), None)


def _may_be_weight(t: onnx.TensorProto) -> bool:
    return math.prod(t.dims) >= 2 and dtype_name(t.data_type) not in _INDICES
