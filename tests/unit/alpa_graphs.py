"""The multi-layer perceptrons and BERT layers of Alpa's tests, as graphs that train on hidden states."""

from __future__ import annotations

from dataclasses import replace

from planner.builder.graph import GraphBuilder
from planner.frontends import import_bytes
from planner.ir import Graph

__all__ = ["bert", "mlp"]


def mlp(layers: int, batch: int, dim: int) -> Graph:
    """Dense layers with bias, ReLU between them, mean squared error."""
    g = GraphBuilder("mlp")
    x = g.input("x", [batch, dim])
    for i in range(layers):
        x = g.linear(x, f"Dense_{i}", dim, dim)
        if i < layers - 1:
            x = g.node("Relu", x)
    return _squared_error(g, x, [batch, dim])


def bert(layers: int, batch: int, seq: int, hidden: int, heads: int) -> Graph:
    """Post-norm layers; query, value and key come from one product whose columns interleave them."""
    g = GraphBuilder("bert")
    x = g.input("hidden_states", [batch, seq, hidden])
    for i in range(layers):
        with g.scope("layer", i):
            x = _layer(g, x, batch, seq, hidden, heads)
    return _squared_error(g, x, [batch, seq, hidden])


def _layer(g: GraphBuilder, x: str, batch: int, seq: int, hidden: int, heads: int) -> str:
    width = hidden // heads
    combined = g.reshape(g.linear(x, "qvk_combined", hidden, 3 * hidden), batch, seq, hidden, 3)
    parts = g.node("Split", combined, results=3, axis=3, num_outputs=3)
    query, value, key = (g.reshape(p, batch, seq, heads, width) for p in parts)
    query = g.node("Transpose", query, perm=[0, 2, 1, 3])
    key = g.node("Transpose", key, perm=[0, 2, 3, 1])
    value = g.node("Transpose", value, perm=[0, 2, 1, 3])
    scores = g.node("Mul", g.node("MatMul", query, key), g.constant(width**-0.5))
    mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), value)
    merged = g.reshape(g.node("Transpose", mixed, perm=[0, 2, 1, 3]), batch, seq, hidden)
    x = g.layer_norm(g.node("Add", g.linear(merged, "attention_output", hidden, hidden), x), "norm_1", hidden)
    inner = g.node("Gelu", g.linear(x, "intermediate", hidden, 4 * hidden), approximate="tanh")
    return g.layer_norm(g.node("Add", g.linear(inner, "output", 4 * hidden, hidden), x), "norm_2", hidden)


def _squared_error(g: GraphBuilder, x: str, shape: list[int]) -> Graph:
    difference = g.node("Sub", x, g.input("target", shape))
    g.output(g.node("ReduceMean", g.node("Mul", difference, difference), keepdims=0), [])
    graph = import_bytes(g.model().SerializeToString(), name=g.name)
    return replace(graph, loss=graph.outputs[0])
