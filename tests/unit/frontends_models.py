"""Small models for the tests of the frontends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from planner.frontends import import_bytes
from planner.ir import Graph

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def node(
    kind: str, inputs: str, outputs: str, *, module: str = "", domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node from names in a string (`-` for an absent one); `module` goes where torch's exporter puts it."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    made = helper.make_node(kind, *names, domain=domain, **attributes)
    if module:
        made.metadata_props.add(key="namespace", value=f"m: M/{module}: torch.nn.Module/{names[1][0]}: aten.op.default")
    return made


def value(name: str, dims: Sequence[int | str | None] | None, elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, dims)


def external(name: str, dims: Sequence[int], elem: int = FLOAT) -> onnx.TensorProto:
    """An initializer whose data lies in a file that does not exist."""
    t = TensorProto(name=name, data_type=elem, dims=dims, data_location=TensorProto.EXTERNAL)
    t.external_data.add(key="location", value="absent.weights")
    return t


def constant(name: str, array: Any, dtype: str = "int64") -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(array, dtype=dtype), name)


def serialised(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str] | Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 20,
    domains: Mapping[str, int] | None = None,
    ir_version: int = 10,
    **fields: Any,
) -> bytes:
    infos = [value(o, None) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(list(nodes), "g", list(inputs), infos, list(initializers))
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, v) for d, v in (domains or {}).items()),
    ]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, **fields).SerializeToString()


def imported(*args: Any, bind: Mapping[str, int] | None = None, batch: int | None = None, **fields: Any) -> Graph:
    return import_bytes(serialised(*args, **fields), name="test", bind=bind, batch=batch)


def assert_same(a: Graph, b: Graph) -> None:
    """Everything but the order in which nothing depends on it."""
    assert a.digest == b.digest
    assert (a.inputs, a.outputs, a.loss, a.name) == (b.inputs, b.outputs, b.loss, b.name)
    assert [(o.name, o.type, o.inputs, o.outputs, o.module, o.source) for o in a.ops] == [
        (o.name, o.type, o.inputs, o.outputs, o.module, o.source) for o in b.ops
    ]
    assert list(a.tensors) == list(b.tensors)
    for t in a.tensors.values():
        u = b.tensors[t.name]
        assert (t.shape, t.dtype, t.role, t.value is None) == (u.shape, u.dtype, u.role, u.value is None)
        assert t.value is None or t.value.tobytes() == u.value.tobytes()


def transformer(layers: int, *, batch: int = 2, sequence: int = 6, hidden: int = 8, heads: int = 2) -> bytes:
    """A language model as a static export: batch and sequence in Reshape targets, a mask and a table of indices."""
    nodes = [
        node("Gather", "embed ids", "h0", module="embed"),
        node("Cast", "attention_mask", "kept", to=BOOL),
    ]
    where = np.stack(np.meshgrid(np.arange(batch), np.arange(sequence), indexing="ij"), -1)
    weights = [external("embed", [32, hidden]), external("head", [hidden, 32])]
    weights += [
        constant("where", where.reshape(batch, 1, 1, sequence, 2)),
        constant("causal", np.tril(np.ones((1, 1, sequence, sequence))), "bool"),
        constant("split", [batch, sequence, heads, hidden // heads]),
        constant("joined", [batch * sequence, hidden]),
        constant("unjoined", [batch, sequence, hidden]),
        constant("labels_flat", [-1]),
        constant("logits_flat", [batch * sequence, 32]),
        constant("zero", 0.0, "float32"),
        constant("low", -1e9, "float32"),
        external("layers.0.q.bias", [hidden]),
    ]
    nodes += [
        node("GatherND", "kept where", "mask0"),
        node("And", "mask0 causal", "mask1"),
        node("Where", "mask1 zero low", "mask"),
    ]
    for i in range(layers):
        h, m = f"h{i}", f"layers.{i}"
        for p in "qkv":
            weights.append(external(f"{m}.{p}.weight", [hidden, hidden]))
            nodes += [
                node("MatMul", f"{h} {m}.{p}.weight", f"{p}0_{i}", module=f"{m}.{p}"),
                node("Add", f"{p}0_{i} layers.0.q.bias", f"{p}1_{i}", module=f"{m}.{p}"),
                node("Reshape", f"{p}1_{i} split", f"{p}2_{i}", module=m),
                node(
                    "Transpose",
                    f"{p}2_{i}",
                    f"{p}_{i}",
                    perm=[0, 2, 3, 1] if p == "k" else [0, 2, 1, 3],
                    module=m,
                ),
            ]
        weights.append(external(f"{m}.out.weight", [hidden, hidden]))
        nodes += [
            node("MatMul", f"q_{i} k_{i}", f"s0_{i}", module=m),
            node("Add", f"s0_{i} mask", f"s1_{i}", module=m),
            node("Softmax", f"s1_{i}", f"s_{i}", axis=-1, module=m),
            node("MatMul", f"s_{i} v_{i}", f"a0_{i}", module=m),
            node("Transpose", f"a0_{i}", f"a1_{i}", perm=[0, 2, 1, 3], module=m),
            node("Reshape", f"a1_{i} joined", f"a_{i}", module=m),
            node("MatMul", f"a_{i} {m}.out.weight", f"o0_{i}", module=f"{m}.out"),
            node("Reshape", f"o0_{i} unjoined", f"o_{i}", module=m),
            node("Add", f"{h} o_{i}", f"h{i + 1}", module=m),
        ]
    nodes += [
        node("MatMul", f"h{layers} head", "logits", module="head"),
        node("Reshape", "logits logits_flat", "scores"),
        node("Reshape", "labels labels_flat", "targets"),
        node("SoftmaxCrossEntropyLoss", "scores targets", "loss"),
    ]
    data = [value(n, [batch, sequence], INT64) for n in ("ids", "attention_mask", "labels")]
    return serialised(nodes, data, [value("loss", []), "logits"], weights)
