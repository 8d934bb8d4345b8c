"""Op → NodeProto, the way back from our values to ONNX's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from planner.frontends.steps.draft import captured_by, split_type
from planner.ir import Op

__all__ = ["node_of", "tensor_of"]

_GRAPHS = frozenset({"then_branch", "else_branch", "body"})


def node_of(op: Op, inputs: Sequence[str] | None = None) -> onnx.NodeProto:
    """The node; names that the operator's sub-graphs capture are not operands and are left out."""
    domain, name = split_type(op.type)
    operands = list(op.inputs if inputs is None else inputs)
    operands = operands[: len(operands) - len(captured_by(op))]
    node = helper.make_node(name, operands, list(op.outputs), name=op.source, domain=domain)
    node.attribute.extend(_attribute(op, key, value) for key, value in sorted(op.attributes.items()))
    return node


def tensor_of(value: np.ndarray[Any, Any], name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)


def _attribute(op: Op, key: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, np.ndarray):
        return helper.make_attribute(key, tensor_of(value, ""))
    if isinstance(value, bytes):
        if key in _GRAPHS or _declared(op, key) == onnx.AttributeProto.GRAPH:
            return helper.make_attribute(key, onnx.GraphProto.FromString(value))
        if key == "sparse_value":
            return helper.make_attribute(key, onnx.SparseTensorProto.FromString(value))
        return helper.make_attribute(key, onnx.TypeProto.FromString(value))
    if isinstance(value, tuple):
        if value and isinstance(value[0], bytes):
            return helper.make_attribute(key, [onnx.GraphProto.FromString(v) for v in value])
        if not value:
            return helper.make_attribute(key, [], attr_type=_declared(op, key))
        return helper.make_attribute(key, [_text(v) for v in value])
    return helper.make_attribute(key, _text(value))


def _text(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _declared(op: Op, key: str) -> int:
    """The type that the operator set says: an empty list, or the bytes of a message, cannot tell."""
    domain, name = split_type(op.type)
    if onnx.defs.has(name, op.opset, domain):
        declared = onnx.defs.get_schema(name, op.opset, domain).attributes.get(key)
        if declared is not None:
            return int(declared.type)
    return int(onnx.AttributeProto.INTS)
