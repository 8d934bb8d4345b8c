"""Attention and feed-forward layers with one product for several things, in the forms that exporters give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["FUSED", "fused_model"]

_HEADS = 4


class _Writer:
    def __init__(self, batch: int, sequence: int, hidden: int) -> None:
        self.batch, self.sequence, self.hidden = batch, sequence, hidden
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(0)

    def weight(self, *shape: int) -> str:
        value = self.rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(shape[0]))
        self.stored.append(numpy_helper.from_array(value, f"w{len(self.stored)}"))
        return str(self.stored[-1].name)

    def constant(self, values: Any) -> str:
        self.stored.append(numpy_helper.from_array(np.array(values, dtype=np.int64), f"c{len(self.stored)}"))
        return str(self.stored[-1].name)

    def add(self, kind: str, *inputs: str, results: int = 1, **attributes: Any) -> tuple[str, ...]:
        names = [f"{kind.lower()}{len(self.nodes)}{'' if j == 0 else f'_{j}'}" for j in range(results)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **attributes))
        return tuple(names)

    def one(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.add(kind, *inputs, **attributes)[0]

    def heads(self, x: str, *perm: int) -> str:
        split = self.one("Reshape", x, self.constant([self.batch, self.sequence, _HEADS, self.hidden // _HEADS]))
        return self.one("Transpose", split, perm=perm)

    def attend(self, q: str, k: str, v: str) -> str:
        """From [batch, head, …]; keys are turned already."""
        mixed = self.one("MatMul", self.one("Softmax", self.one("MatMul", q, k), axis=-1), v)
        joined = self.one("Transpose", mixed, perm=(0, 2, 1, 3))
        flat = self.one("Reshape", joined, self.constant([self.batch, self.sequence, self.hidden]))
        return self.one("MatMul", flat, self.weight(self.hidden, self.hidden))


def _split_product(w: _Writer) -> str:
    """GPT-2 as PyTorch exports it: rows flattened, one Gemm, a Split into queries, keys and values."""
    rows = w.one("Reshape", "x", w.constant([w.batch * w.sequence, w.hidden]))
    made = w.one("Gemm", rows, w.weight(w.hidden, 3 * w.hidden), w.weight(3 * w.hidden))
    three = w.one("Reshape", made, w.constant([w.batch, w.sequence, 3 * w.hidden]))
    q, k, v = w.add("Split", three, w.constant([w.hidden] * 3), results=3, axis=2)
    return w.attend(w.heads(q, 0, 2, 1, 3), w.heads(k, 0, 2, 3, 1), w.heads(v, 0, 2, 1, 3))


def _indexed_product(w: _Writer) -> str:
    """timm's vision transformers: [batch, position, 3, head, depth], the three indexed."""
    made = w.one("MatMul", "x", w.one("Transpose", w.weight(3 * w.hidden, w.hidden), perm=(1, 0)))
    made = w.one("Add", made, w.weight(3 * w.hidden))
    apart = w.one("Reshape", made, w.constant([w.batch, w.sequence, 3, _HEADS, w.hidden // _HEADS]))
    turned = w.one("Transpose", apart, perm=(2, 0, 3, 1, 4))
    q, k, v = (w.one("Gather", turned, w.constant(i), axis=0) for i in range(3))
    return w.attend(q, w.one("Transpose", k, perm=(0, 1, 3, 2)), v)


def _unflattened_product(w: _Writer) -> str:
    """torch.nn.MultiheadAttention: [batch, position, 3, hidden], turned to the front and indexed."""
    made = w.one("Add", w.one("MatMul", "x", w.weight(w.hidden, 3 * w.hidden)), w.weight(3 * w.hidden))
    apart = w.one("Unsqueeze", w.one("Reshape", made, w.constant([w.batch, w.sequence, 3, w.hidden])), w.constant([0]))
    front = w.one("Squeeze", w.one("Transpose", apart, perm=(3, 1, 2, 0, 4)), w.constant([3]))
    q, k, v = (w.one("Gather", front, w.constant(i), axis=0) for i in range(3))
    return w.attend(w.heads(q, 0, 2, 1, 3), w.heads(k, 0, 2, 3, 1), w.heads(v, 0, 2, 1, 3))


def _gated(w: _Writer) -> str:
    """A gate and what it lets through from one product, as in Phi-3."""
    both = w.one("MatMul", "x", w.weight(w.hidden, 8 * w.hidden))
    gate, up = w.add("Split", both, results=2, axis=-1, num_outputs=2)
    opened = w.one("Mul", w.one("Mul", gate, w.one("Sigmoid", gate)), up)
    return w.one("MatMul", opened, w.weight(4 * w.hidden, w.hidden))


FUSED: Final[Mapping[str, Callable[[_Writer], str]]] = {
    "split_product": _split_product,
    "indexed_product": _indexed_product,
    "unflattened_product": _unflattened_product,
    "gated": _gated,
}


def fused_model(name: str, batch: int = 2, sequence: int = 8, hidden: int = 16) -> bytes:
    """The ONNX file of one of these layers, its weights included, with a loss of its result against labels."""
    w = _Writer(batch, sequence, hidden)
    y = FUSED[name](w)
    scores = w.one("Transpose", y, perm=(0, 2, 1))
    loss = w.one("SoftmaxCrossEntropyLoss", scores, "labels")
    fed = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, sequence, hidden]),
        helper.make_tensor_value_info("labels", TensorProto.INT64, [batch, sequence]),
    ]
    given = [helper.make_tensor_value_info(loss, TensorProto.FLOAT, [])]
    graph = helper.make_graph(w.nodes, name, fed, given, w.stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model).SerializeToString()
