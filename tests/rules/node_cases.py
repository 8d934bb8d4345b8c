"""ONNX's own node tests as cases: operands and results that nobody here wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests
from tests.rules.prover import Case, from_values

from planner.ir import Op

__all__ = ["node_cases"]


def node_cases() -> Iterator[Case]:
    """Every single-node test on tensors, with the values of its operands known to the rule."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        tests = load_node_model_tests()
    for test in tests:
        model = onnx.load(str(Path(test.model_dir) / "model.onnx"))
        if len(model.graph.node) != 1 or model.graph.initializer:
            continue
        node = model.graph.node[0]
        data = Path(test.model_dir) / "test_data_set_0"
        names = [v.name for v in model.graph.input]
        inputs = dict(zip(names, _load(data, "input", model.graph.input), strict=True))
        outputs = dict(zip([v.name for v in model.graph.output], _load(data, "output", model.graph.output), strict=True))
        if any(v is None for v in (*inputs.values(), *outputs.values())):
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
            tuple(inputs.get(n) if n else None for n in node.input),
            tuple(outputs.get(n) if n else None for n in node.output),
            set(range(len(node.input))),
            test.name,
        )


def _load(folder: Path, kind: str, values: Any) -> list[np.ndarray | None]:
    return [_tensor(folder / f"{kind}_{i}.pb", v) for i, v in enumerate(values)]


def _tensor(path: Path, value: onnx.ValueInfoProto) -> np.ndarray | None:
    if value.type.WhichOneof("value") != "tensor_type":
        return None
    return numpy_helper.to_array(onnx.load_tensor(str(path)))


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
