"""ONNX's own node tests as cases: operands and results that nobody here wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests

from planner.ir import Op
from tests.rules.prover import Case, from_values

__all__ = ["node_cases"]


def node_cases() -> Iterator[Case]:
    """Every single-node test on tensors, with the values of its operands known to the rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        tests = load_node_model_tests()
    for test in tests:
        model, data = test.model, test.data_sets
        if model is None or not data or len(model.graph.node) != 1 or model.graph.initializer:
            continue
        node = model.graph.node[0]
        inputs = dict(zip([v.name for v in model.graph.input], data[0][0], strict=False))
        outputs = dict(zip([v.name for v in model.graph.output], data[0][1], strict=False))
        if not all(_is_array(v) for v in (*inputs.values(), *outputs.values())):
            continue
        versions = {o.domain: o.version for o in model.opset_import}
        domain = node.domain if node.domain not in ("", "ai.onnx") else ""
        op = Op(
            next(o for o in node.output if o),
            f"{domain}::{node.op_type}" if domain else node.op_type,
            tuple(node.input),
            tuple(node.output),
            {a.name: _attribute(a) for a in node.attribute},
            versions.get(node.domain, 1),
        )
        yield from_values(
            op,
            tuple(np.asarray(inputs[n]) if n else None for n in node.input),
            tuple(np.asarray(outputs[n]) if n else None for n in node.output),
            set(range(len(node.input))),
            test.name,
        )


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub"


def _attribute(a: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(a)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.GraphProto):
        return value.SerializeToString()
    if a.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS):
        return tuple(value)
    return tuple(v.decode() for v in value) if a.type == onnx.AttributeProto.STRINGS else value
