"""Models that ONNX Runtime has optimised: fused operators without shapes in the file, their batch bound anew."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.frontends import import_bytes
from planner.ir import Graph, Role
from planner.rules import rule_for

BATCH, TOKENS, WIDTH, HEADS, WORDS = 4, 32, 64, 8, 100
FUSED = "com.microsoft"


def encoder(layers: int = 2) -> bytes:
    """A BERT encoder as ONNX Runtime's transformer optimiser writes it; only input and output have shapes."""
    rng = np.random.default_rng(0)
    weights: dict[str, onnx.TensorProto] = {}

    def w(name: str, *shape: int) -> str:
        value = rng.standard_normal(shape) / np.sqrt(shape[0])
        weights[name] = numpy_helper.from_array(value.astype(np.float32), name)
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: int) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [output], domain="" if kind == "MatMul" else FUSED, **attributes)

    tables = ["ids", "", w("words", WORDS, WIDTH), w("places", 64, WIDTH), "", w("g", WIDTH), w("b", WIDTH)]
    nodes = [helper.make_node("EmbedLayerNormalization", tables, ["x", "mask"], domain=FUSED)]
    x = "x"
    for i in range(layers):
        nodes += [
            node("Attention", [x, w(f"qkv{i}", WIDTH, 3 * WIDTH), w(f"bq{i}", 3 * WIDTH)], f"a{i}", num_heads=HEADS),
            node("MatMul", [f"a{i}", w(f"o{i}", WIDTH, WIDTH)], f"p{i}"),
            node("SkipLayerNormalization", [f"p{i}", x, w(f"g{i}", WIDTH), w(f"b{i}", WIDTH)], f"n{i}"),
            node("MatMul", [f"n{i}", w(f"u{i}", WIDTH, 4 * WIDTH)], f"h{i}"),
            node("BiasGelu", [f"h{i}", w(f"bu{i}", 4 * WIDTH)], f"e{i}"),
            node("MatMul", [f"e{i}", w(f"d{i}", 4 * WIDTH, WIDTH)], f"m{i}"),
            node("SkipLayerNormalization", [f"m{i}", f"n{i}", w(f"k{i}", WIDTH), w(f"j{i}", WIDTH)], f"y{i}"),
        ]
        x = f"y{i}"
    graph = helper.make_graph(
        [*nodes, node("MatMul", [x, w("head", WIDTH, WORDS)], "logits")],
        "encoder",
        [helper.make_tensor_value_info("ids", TensorProto.INT32, [BATCH, TOKENS])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        list(weights.values()),
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(FUSED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_bytes(encoder(), batch=16)


def test_shapes_are_inferred_and_the_batch_is_carried(graph: Graph) -> None:
    assert graph.tensors["logits"].shape == (16, TOKENS, WORDS)
    assert all(t.shape is not None for t in graph.tensors.values())


def test_weights_of_fused_operators_are_parameters(graph: Graph) -> None:
    roles = {n: graph.tensors[n].role for n in ("words", "qkv0", "bq0", "g0", "bu1", "head")}
    assert set(roles.values()) == {Role.PARAMETER}


def test_every_operator_can_be_split(graph: Graph) -> None:
    for op in graph.ops:
        rule = rule_for(op, graph)
        assert rule is not None
        assert any(n > 1 and f in rule.cuts for f, n in rule.factors.items()), f"{op.type}: {rule.text}"
