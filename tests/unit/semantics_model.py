"""The subject of docs/semantics.md: a small transformer with its loss, and Megatron with data parallelism by hand.

Everything here is written down, nothing is computed from the planner: the roles of every operator on a mesh of
2 (x, data) by 2 (y, tensor), the layouts that must follow, and the collectives that must be left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "BATCH",
    "HEADS",
    "HIDDEN",
    "LAYER_LAYOUTS",
    "LAYER_PARAMETERS",
    "OTHER_LAYOUTS",
    "OTHER_PARAMETERS",
    "SEQUENCE",
    "VOCABULARY",
    "chain",
    "fan",
    "megatron_roles",
    "mlp_block",
    "stored_text",
    "transformer",
]

BATCH, SEQUENCE, HIDDEN, HEADS, VOCABULARY = 4, 4, 8, 2, 16


class _Model:
    """Nodes and initializers in order; every node is named after its first result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._random = np.random.default_rng(7)

    def weight(self, name: str, *shape: int) -> str:
        values = self._random.normal(0.0, 0.5, shape).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def constant(self, name: str, values: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def op(self, kind: str, inputs: list[str], result: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [result], name=result, **attributes))
        return result

    def done(self, inputs: Mapping[str, tuple[int, tuple[int, ...]]], output: str) -> bytes:
        graph = helper.make_graph(
            self.nodes,
            "semantics",
            [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ())],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return model.SerializeToString()


def transformer(layers: int = 2) -> bytes:
    """Tokens and labels (batch, sequence) to the mean cross-entropy of the next-token scores."""
    m, b, s, h, d = _Model(), BATCH, SEQUENCE, HIDDEN, HIDDEN // HEADS
    m.constant("heads", np.array([b, s, HEADS, d], dtype=np.int64))
    m.constant("flat", np.array([b, s, h], dtype=np.int64))
    m.constant("scale", np.array(1 / math.sqrt(d), dtype=np.float32))
    x = m.op("Gather", [m.weight("embedding", VOCABULARY, h), "tokens"], "embedded")
    for i in range(layers):
        x = _layer(m, f"l{i}", x)
    norm = m.op("LayerNormalization", [x, m.weight("f.gain", h), m.weight("f.shift", h)], "f.norm", axis=-1)
    logits = m.op("MatMul", [norm, m.weight("head", h, VOCABULARY)], "logits")
    m.op("SoftmaxCrossEntropyLoss", [m.op("Transpose", [logits], "scores", perm=[0, 2, 1]), "labels"], "loss")
    return m.done(dict.fromkeys(("tokens", "labels"), (TensorProto.INT64, (b, s))), "loss")


def _layer(m: _Model, p: str, x: str) -> str:
    h, wide = HIDDEN, 4 * HIDDEN

    def norm(name: str, value: str) -> str:
        gain, shift = m.weight(f"{p}.{name}.gain", h), m.weight(f"{p}.{name}.shift", h)
        return m.op("LayerNormalization", [value, gain, shift], f"{p}.{name}", axis=-1)

    def heads(name: str, value: str, perm: list[int]) -> str:
        product = m.op("MatMul", [value, m.weight(f"{p}.w{name}", h, h)], f"{p}.{name}")
        return m.op("Transpose", [m.op("Reshape", [product, "heads"], f"{p}.{name}.cut")], f"{p}.{name}.heads", perm=perm)

    a = norm("norm1", x)
    q, k, v = heads("q", a, [0, 2, 1, 3]), heads("k", a, [0, 2, 3, 1]), heads("v", a, [0, 2, 1, 3])
    scaled = m.op("Mul", [m.op("MatMul", [q, k], f"{p}.scores"), "scale"], f"{p}.scaled")
    weights = m.op("Softmax", [scaled], f"{p}.weights", axis=-1)
    context = m.op("MatMul", [weights, v], f"{p}.context")
    joined = m.op("Transpose", [context], f"{p}.joined", perm=[0, 2, 1, 3])
    flat = m.op("Reshape", [joined, "flat"], f"{p}.flat")
    projected = m.op("MatMul", [flat, m.weight(f"{p}.wo", h, h)], f"{p}.projected")
    x = m.op("Add", [x, m.op("Add", [projected, m.weight(f"{p}.bo", h)], f"{p}.attended")], f"{p}.middle")
    n = norm("norm2", x)
    up = m.op("MatMul", [n, m.weight(f"{p}.w1", h, wide)], f"{p}.up")
    active = m.op("Gelu", [m.op("Add", [up, m.weight(f"{p}.b1", wide)], f"{p}.biased")], f"{p}.active")
    down = m.op("MatMul", [active, m.weight(f"{p}.w2", wide, h)], f"{p}.down")
    return m.op("Add", [x, m.op("Add", [down, m.weight(f"{p}.b2", h)], f"{p}.out")], f"{p}.result")
