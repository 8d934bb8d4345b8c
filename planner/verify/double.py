"""The graph in double precision: the same operators and names, every float of fewer than eight bytes a float64.

A proof in double precision needs no allowance for rounding worth the name.  What a model rounds on purpose in floats
(a Cast to half precision and back) is the identity here; integers, and the numbers of eight bits and fewer that
quantisation produces, keep their types, so that quantised operators keep their meaning with scales of float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from planner.ir import Graph, Op, Tensor

__all__ = ["double_op", "double_subgraph", "in_double"]

_NARROW = frozenset({"float16", "bfloat16", "float32"})
_NARROW_NUMBERS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes that hold an element type.
_TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "output_type", "precision", "softmax_precision", "stash_type"}
)
# Attributes that hold a sub-graph, of If, Loop, Scan, SequenceMap and FlexAttention.
_BODIES = frozenset({"then_branch", "else_branch", "body", "score_mod", "prob_mod"})
# Operators whose result is float32 where this attribute does not say otherwise.
_FLOAT_UNLESS_STATED: Mapping[str, str] = {
    "BlackmanWindow": "output_datatype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "LayerNormalization": "stash_type",
    "MelWeightMatrix": "output_datatype",
    "RMSNormalization": "stash_type",
    "RandomNormal": "dtype",
    "RandomUniform": "dtype",
    "SequenceEmpty": "dtype",
    "TfIdfVectorizer": "dtype",  # ours: the operator itself knows float32 alone
    "ai.onnx.ml::LabelEncoder": "dtype",
    "ai.onnx.ml::OneHotEncoder": "dtype",
}
# Cast of opset 1 to 5 names the type by a word.
_WORDS = frozenset({"FLOAT", "FLOAT16", "BFLOAT16"})


def in_double(graph: Graph) -> Graph:
    """The graph with every float16, bfloat16 and float32 tensor as float64, and attributes to match.

    Names, shapes, roles and the order of operators stay, so that rules and programs of the one fit the other.
    """
    return replace(
        graph,
        ops=tuple(double_op(op) for op in graph.ops),
        tensors={name: _tensor(t) for name, t in graph.tensors.items()},
    )


def double_op(op: Op) -> Op:
    """The operator as it reads and writes float64 where it read and wrote narrower floats."""
    attributes = {name: _attribute(name, value) for name, value in op.attributes.items()}
    stated = _FLOAT_UNLESS_STATED.get(op.type)
    if stated is not None:
        attributes.setdefault(stated, int(TensorProto.DOUBLE))
    if op.type == "ConstantOfShape":
        attributes.setdefault("value", np.zeros(1))
    if op.type == "Constant":
        for name in ("value_float", "value_floats"):
            if name in attributes:
                attributes = {"value": np.array(attributes[name], dtype=np.float64)}
    same = attributes.keys() == op.attributes.keys() and all(attributes[k] is v for k, v in op.attributes.items())
    return op if same else replace(op, attributes=attributes)


def double_subgraph(graph: onnx.GraphProto) -> onnx.GraphProto:
    """The body of an If, a Loop or a Scan in double precision."""
    wide = onnx.GraphProto()
    wide.CopyFrom(graph)
    for initializer in wide.initializer:
        _widen_tensor(initializer)
    for sparse in wide.sparse_initializer:
        _widen_tensor(sparse.values)
    for info in (*wide.input, *wide.output, *wide.value_info):
        _widen_type(info.type)
    for node in wide.node:
        _widen_node(node)
    return wide


def _tensor(t: Tensor) -> Tensor:
    if t.dtype not in _NARROW:
        return t
    return replace(t, dtype="float64", value=None if t.value is None else np.asarray(t.value).astype(np.float64))


def _attribute(name: str, value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64) if value.dtype.name in _NARROW else value
    if name in _BODIES and isinstance(value, bytes):
        body = double_subgraph(onnx.GraphProto.FromString(value))
        return body.SerializeToString(deterministic=True)
    if name == "type" and isinstance(value, bytes):
        kind = onnx.TypeProto.FromString(value)
        _widen_type(kind)
        return kind.SerializeToString(deterministic=True)
    return _type_number(value) if name in _TYPE_ATTRIBUTES else value


def _type_number(value: Any) -> Any:
    if isinstance(value, str):
        return "DOUBLE" if value.upper() in _WORDS else value
    return int(TensorProto.DOUBLE) if value in _NARROW_NUMBERS else value


def _widen_node(node: onnx.NodeProto) -> None:
    kinds = onnx.AttributeProto
    for a in list(node.attribute):
        if node.op_type == "Constant" and a.name in ("value_float", "value_floats"):
            given = np.array(a.f if a.name == "value_float" else list(a.floats), dtype=np.float64)
            a.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(given)))
        elif a.type == kinds.TENSOR:
            _widen_tensor(a.t)
        elif a.type == kinds.SPARSE_TENSOR:
            _widen_tensor(a.sparse_tensor.values)
        elif a.type == kinds.GRAPH:
            a.g.CopyFrom(double_subgraph(a.g))
        elif a.type == kinds.TYPE_PROTO:
            _widen_type(a.tp)
        elif a.type == kinds.INT and a.name in _TYPE_ATTRIBUTES:
            a.i = _type_number(a.i)
        elif a.type == kinds.STRING and a.name in _TYPE_ATTRIBUTES:
            a.s = _type_number(a.s.decode()).encode()
    present = {a.name for a in node.attribute}
    stated = _FLOAT_UNLESS_STATED.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if stated is not None and stated not in present:
        node.attribute.append(helper.make_attribute(stated, int(TensorProto.DOUBLE)))
    if node.op_type == "ConstantOfShape" and "value" not in present:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    if tensor.data_type not in _NARROW_NUMBERS:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        tensor.data_type = TensorProto.DOUBLE  # the values are not here; whoever draws them reads the type
        return
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _widen_type(kind: onnx.TypeProto) -> None:
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        held = getattr(kind, which)
        if held.elem_type in _NARROW_NUMBERS:
            held.elem_type = TensorProto.DOUBLE
    elif which in ("sequence_type", "optional_type"):
        _widen_type(getattr(kind, which).elem_type)
    elif which == "map_type":
        _widen_type(kind.map_type.value_type)
