"""The multi-layer perceptrons and BERT layers of Alpa's tests, as graphs that train on hidden states."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.builder.graph import GraphBuilder
from planner.builder.layers import gelu_mlp, layer_norm, linear
from planner.frontends import import_bytes
from planner.ir import Graph

__all__ = [
    "add_one",
    "attention",
    "bert",
    "dropout_between",
    "expert_products",
    "feed_forward",
    "mlp",
    "reshaped",
    "squared_error",
]


def mlp(layers: int, batch: int, dim: int) -> Graph:
    """Dense layers with bias, ReLU between them, mean squared error."""
    g = GraphBuilder("mlp")
    x = g.input("x", [batch, dim])
    for i in range(layers):
        x = linear(g, x, f"Dense_{i}", dim, dim)
        if i < layers - 1:
            x = g.add("Relu", x)
    return squared_error(g, x, [batch, dim])


def bert(layers: int, batch: int, seq: int, hidden: int, heads: int) -> Graph:
    """Post-norm layers; query, value and key come from one product whose columns interleave them."""
    g = GraphBuilder("bert")
    x = g.input("hidden_states", [batch, seq, hidden])
    for i in range(layers):
        with g.scope(f"layer.{i}"):
            x = feed_forward(g, attention(g, x, batch, seq, hidden, heads), hidden)
    return squared_error(g, x, [batch, seq, hidden])


def dropout_between(rows: int, columns: int, width: int) -> Graph:
    """Two products with dropout between them (test_basic.py, as are the next two)."""
    g = GraphBuilder("dropout")
    x = linear(g, g.input("x", [rows, columns, width]), "Dense_0", width, width, bias=False)
    x = g.add("Dropout", x, g.constant(0.1, np.float32), g.constant(True, np.bool_))
    return squared_error(g, linear(g, x, "Dense_1", width, width, bias=False), [rows, columns, width])


def add_one(rows: int, columns: int) -> Graph:
    g = GraphBuilder("add_one")
    g.output(g.add("Add", g.input("x", [rows, columns]), g.constant(1, np.float32)), "y", [rows, columns])
    return import_bytes(g.model().SerializeToString(), name="alpa")


def reshaped(elements: int, rows: int) -> Graph:
    g = GraphBuilder("reshaped")
    shape = [rows, elements // rows]
    g.output(g.add("Reshape", g.input("x", [elements]), g.constant(shape)), "y", shape)
    return import_bytes(g.model().SerializeToString(), name="alpa")


def expert_products(batch: int, experts: int, width: int) -> Graph:
    """Two products, two of the features of every expert by itself, and two again; no biases (test_mixed_2d.py)."""
    g = GraphBuilder("mixed")
    part, inner = width // experts, 8 * width
    x = g.input("x", [batch, width])
    for i in range(2):
        x = linear(g, x, f"Dense_{i}", width, width, bias=False)
    x = g.add("Reshape", x, g.constant([batch, experts, part]))
    x = g.add("Einsum", x, g.parameter("wi", experts, part, inner), equation="BEM,EMH->EBH")
    x = g.add("Einsum", x, g.parameter("wo", experts, inner, part), equation="EBH,EHM->BEM")
    x = g.add("Reshape", x, g.constant([batch, width]))
    for i in range(2, 4):
        x = linear(g, x, f"Dense_{i}", width, width, bias=False)
    return squared_error(g, x, [batch, width])


def attention(g: GraphBuilder, x: str, batch: int, seq: int, hidden: int, heads: int) -> str:
    """With the residual and the normalisation after it."""
    width = hidden // heads
    combined = linear(g, x, "qvk_combined", hidden, 3 * hidden)
    combined = g.add("Reshape", combined, g.constant([batch, seq, hidden, 3]))
    parts = g.add_many("Split", 3, combined, axis=3, num_outputs=3)
    query, value, key = (g.add("Reshape", p, g.constant([batch, seq, heads, width])) for p in parts)
    query = g.add("Transpose", query, perm=[0, 2, 1, 3])
    key = g.add("Transpose", key, perm=[0, 2, 3, 1])
    value = g.add("Transpose", value, perm=[0, 2, 1, 3])
    scores = g.add("Mul", g.add("MatMul", query, key), g.constant(width**-0.5, np.float32))
    mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), value)
    merged = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), g.constant([batch, seq, hidden]))
    attended = linear(g, merged, "attention_output", hidden, hidden)
    return layer_norm(g, g.add("Add", attended, x), "norm_1", hidden)


def feed_forward(g: GraphBuilder, x: str, hidden: int) -> str:
    """With the residual and the normalisation after it."""
    inner = gelu_mlp(g, x, "intermediate", "output", hidden, 4 * hidden, "tanh")
    return layer_norm(g, g.add("Add", inner, x), "norm_2", hidden)


def squared_error(g: GraphBuilder, x: str, shape: list[int]) -> Graph:
    difference = g.add("Sub", x, g.input("target", shape))
    g.output(g.add("ReduceMean", g.add("Mul", difference, difference), keepdims=0), "loss", [])
    graph = import_bytes(g.model().SerializeToString(), name="alpa")
    return replace(graph, loss="loss")
