"""The subject of docs/semantics.md, a small transformer with its loss, and the graphs of its smaller proofs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["SMALL", "Sizes", "chain", "fan", "mlp", "transformer"]


@dataclass(frozen=True, slots=True)
class Sizes:
    batch: int
    sequence: int
    hidden: int
    heads: int
    vocabulary: int


SMALL = Sizes(batch=4, sequence=4, hidden=8, heads=2, vocabulary=16)


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

    def op(self, kind: str, inputs: list[str], result: str, **attributes: Any) -> str:
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
        data: bytes = model.SerializeToString()
        return data


def transformer(layers: int = 2, sizes: Sizes = SMALL) -> bytes:
    """Tokens and labels (batch, sequence) to the mean cross-entropy of the next-token scores."""
    m, b, s, h = _Model(), sizes.batch, sizes.sequence, sizes.hidden
    m.constant("heads", np.array([b, s, sizes.heads, h // sizes.heads], dtype=np.int64))
    m.constant("flat", np.array([b, s, h], dtype=np.int64))
    m.constant("scale", np.array(1 / math.sqrt(h // sizes.heads), dtype=np.float32))
    x = m.op("Gather", [m.weight("embedding", sizes.vocabulary, h), "tokens"], "embedded")
    for i in range(layers):
        x = _layer(m, f"l{i}", x, h)
    norm = _norm(m, "f.norm", x, h)
    logits = m.op("MatMul", [norm, m.weight("head", h, sizes.vocabulary)], "logits")
    m.op("SoftmaxCrossEntropyLoss", [m.op("Transpose", [logits], "scores", perm=[0, 2, 1]), "labels"], "loss")
    return m.done(dict.fromkeys(("tokens", "labels"), (TensorProto.INT64, (b, s))), "loss")


def _layer(m: _Model, p: str, x: str, h: int) -> str:
    def heads(name: str, value: str, perm: list[int]) -> str:
        product = m.op("MatMul", [value, m.weight(f"{p}.w{name}", h, h)], f"{p}.{name}")
        cut = m.op("Reshape", [product, "heads"], f"{p}.{name}.cut")
        return m.op("Transpose", [cut], f"{p}.{name}.heads", perm=perm)

    norm = _norm(m, f"{p}.norm1", x, h)
    q, k, v = (heads(n, norm, perm) for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
    scaled = m.op("Mul", [m.op("MatMul", [q, k], f"{p}.scores"), "scale"], f"{p}.scaled")
    context = m.op("MatMul", [m.op("Softmax", [scaled], f"{p}.weights", axis=-1), v], f"{p}.context")
    joined = m.op("Transpose", [context], f"{p}.joined", perm=[0, 2, 1, 3])
    flat = m.op("Reshape", [joined, "flat"], f"{p}.flat")
    projected = m.op("MatMul", [flat, m.weight(f"{p}.wo", h, h)], f"{p}.projected")
    attended = m.op("Add", [projected, m.weight(f"{p}.bo", h)], f"{p}.attended")
    return _mlp(m, p, m.op("Add", [x, attended], f"{p}.middle"), h)


def _mlp(m: _Model, p: str, x: str, h: int) -> str:
    up = m.op("MatMul", [_norm(m, f"{p}.norm2", x, h), m.weight(f"{p}.w1", h, 4 * h)], f"{p}.up")
    active = m.op("Gelu", [m.op("Add", [up, m.weight(f"{p}.b1", 4 * h)], f"{p}.biased")], f"{p}.active")
    down = m.op("MatMul", [active, m.weight(f"{p}.w2", 4 * h, h)], f"{p}.down")
    return m.op("Add", [x, m.op("Add", [down, m.weight(f"{p}.b2", h)], f"{p}.out")], f"{p}.result")


def _norm(m: _Model, name: str, x: str, h: int) -> str:
    parameters = [m.weight(f"{name}.gain", h), m.weight(f"{name}.shift", h)]
    return m.op("LayerNormalization", [x, *parameters], name, axis=-1)


def mlp(rows: int = 4, hidden: int = 8) -> bytes:
    """One block of the transformer, from its residual stream (rows, hidden) to a mean."""
    m = _Model()
    x = m.op("MatMul", ["x", m.weight("w0", hidden, hidden)], "stream")
    m.op("ReduceMean", [_mlp(m, "l", x, hidden)], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, hidden))}, "loss")


def chain(rows: int, width: int, *, products: int = 2) -> bytes:
    """x W1, and with two products relu(x W1) W2, to a mean."""
    m = _Model()
    last = m.op("Relu", [m.op("MatMul", ["x", m.weight("w1", width, width)], "h")], "a")
    if products == 2:
        last = m.op("MatMul", [last, m.weight("w2", width, width)], "y")
    m.op("ReduceMean", [last], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, width))}, "loss")


def fan(rows: int, width: int, readers: int) -> bytes:
    """h = x W read by two to four operators, whose results are summed, to a mean."""
    m = _Model()
    h = m.op("MatMul", ["x", m.weight("w1", width, width)], "h")
    kinds = ("Relu", "Sigmoid", "Tanh", "Softplus")[:readers]
    m.op("ReduceMean", [m.op("Sum", [m.op(kind, [h], kind.lower()) for kind in kinds], "s")], "loss", keepdims=0)
    return m.done({"x": (TensorProto.FLOAT, (rows, width))}, "loss")
