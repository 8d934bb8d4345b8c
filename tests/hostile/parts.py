"""What the hostile models are made of."""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

OPSETS = [helper.make_opsetid("", 20)]
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def model(nodes, *, inputs=None, outputs=None, initializers=(), functions=(), opsets=None):
    inputs = inputs or [helper.make_tensor_value_info("x", FLOAT, [2, 3])]
    outputs = outputs or [helper.make_tensor_value_info("y", FLOAT, None)]
    graph = helper.make_graph(nodes, "hostile", inputs, outputs, list(initializers))
    return helper.make_model(graph, opset_imports=opsets or OPSETS, functions=list(functions), ir_version=10)


def int64s(name, values):
    return helper.make_tensor(name, INT64, [len(values)], values)


def plain():
    return model([helper.make_node("Relu", ["x"], ["y"], name="relu")])


LOCAL = [*OPSETS, helper.make_opsetid("local", 1)]


def function(name, nodes):
    return helper.make_function("local", name, ["a"], ["b"], nodes, [*OPSETS, helper.make_opsetid("local", 1)])


def serialized(made: onnx.ModelProto | bytes) -> bytes:
    return made if isinstance(made, bytes) else made.SerializeToString(deterministic=True)


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """A length-delimited field on the wire."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def with_nodes(*more: bytes) -> bytes:
    """The plain model with further nodes, each as the bytes of a NodeProto, before its own."""
    whole = plain()
    own = [field(1, n.SerializeToString(deterministic=True)) for n in whole.graph.node]
    del whole.graph.node[:]
    graph = b"".join(field(1, m) for m in more) + b"".join(own) + whole.graph.SerializeToString(deterministic=True)
    whole.ClearField("graph")
    return whole.SerializeToString(deterministic=True) + field(7, graph)


def chain(kinds, source="x", result="y"):
    """Operators of one operand, one behind the other."""
    names = [source, *(f"t{i}" for i in range(1, len(kinds))), result]
    return [helper.make_node(k, [a], [b]) for k, a, b in zip(kinds, names[:-1], names[1:], strict=True)]
