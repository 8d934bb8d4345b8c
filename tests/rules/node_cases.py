"""ONNX's own node tests as cases: operands and results that nobody here wrote.

Tests of one node are one case each.  Those named `…_expanded` hold the body of a function operator, many nodes: the
ONNX reference evaluator gives the tensors in between, and every node that no other test holds already is a case.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_node_model_tests
from onnx.reference import ReferenceEvaluator

from planner.ir import Op
from tests.rules.prover import Case, from_values

__all__ = ["NodeTest", "node_cases", "node_tests"]


@dataclass(frozen=True, eq=False)
class NodeTest:
    """A node test of ONNX: its operator types, its cases, and why nodes of it are no cases, where they are not."""

    name: str
    types: tuple[str, ...]
    cases: tuple[Case, ...]
    left_out: tuple[tuple[str, str], ...] = ()  # (operator type, reason)
    repeated: int = 0  # nodes that an earlier test holds already, with the same shapes and attributes


@cache
def node_tests() -> tuple[NodeTest, ...]:
    """All node tests that the installed ONNX package holds."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the generators overflow on purpose
        np.random.seed(0)  # noqa: NPY002  the source of most of their data, which would differ from run to run
        seen: set[object] = set()
        return tuple(_node_test(t.name, t.model, t.data_sets, seen) for t in load_node_model_tests())


def node_cases() -> Iterator[Case]:
    """The cases of all node tests."""
    return (case for test in node_tests() for case in test.cases)


def _node_test(name: str, model: onnx.ModelProto, data: list[Any] | None, seen: set[object]) -> NodeTest:
    graph = model.graph
    versions = {o.domain: o.version for o in model.opset_import}
    types = tuple(_type(n) for n in graph.node)
    if not data:
        return NodeTest(name, types, (), tuple((t, "the test holds no data") for t in dict.fromkeys(types)))
    values: dict[str, Any] = dict(zip([v.name for v in graph.input], data[0][0], strict=False))
    values |= {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    expected = dict(zip([v.name for v in graph.output], data[0][1], strict=False))
    if len(graph.node) > 1 and any(t.startswith("Random") for t in types):
        return NodeTest(
            name, types, (), tuple((t, "the function body draws random numbers") for t in dict.fromkeys(types))
        )
    if len(graph.node) > 1:
        try:
            inner = ReferenceEvaluator(model).run(None, values, intermediate=True)
        except Exception as error:  # whatever the evaluator trips over is the reason why there is no case
            reason = f"the reference evaluator fails on the function body: {type(error).__name__}"
            return NodeTest(name, types, (), tuple((t, reason) for t in dict.fromkeys(types)))
        values = {**inner, **values}
    values |= expected
    cases, left_out, repeated = [], [], 0
    for i, (type_, node) in enumerate(zip(types, graph.node, strict=True)):
        op = _op(node, type_, versions.get(node.domain, 1))
        inputs = tuple(_value(n, values) for n in node.input)
        results = tuple(_value(n, values) for n in node.output)
        reason = _unfit((*inputs, *results))
        if reason:
            left_out.append((type_, reason))
            continue
        key = _key(op, inputs)
        if len(graph.node) > 1 and key in seen:
            repeated += 1
            continue
        seen.add(key)
        known = set(range(len(inputs))) if len(graph.node) == 1 else _known(inputs)
        cases.append(from_values(op, inputs, results, known, name if len(graph.node) == 1 else f"{name}[{i}]"))
    return NodeTest(name, types, tuple(cases), tuple(dict.fromkeys(left_out)), repeated)


def _known(inputs: tuple[Any, ...]) -> set[int]:
    """Operands whose values a rule may read: importing folds what is computed from shapes and constants."""
    return {i for i, v in enumerate(inputs) if v is not None and v.dtype.kind in "iu" and v.ndim < 2}


def _type(node: onnx.NodeProto) -> str:
    domain = node.domain if node.domain not in ("", "ai.onnx") else ""
    return f"{domain}::{node.op_type}" if domain else node.op_type


def _op(node: onnx.NodeProto, type_: str, version: int) -> Op:
    attributes = {a.name: _attribute(a) for a in node.attribute}
    return Op(next(o for o in node.output if o), type_, tuple(node.input), tuple(node.output), attributes, version)


def _value(name: str, values: Mapping[str, Any]) -> Any:
    if not name:
        return None
    found = values.get(name)
    if isinstance(found, onnx.TensorProto):
        found = numpy_helper.to_array(found)
    return np.asarray(found) if isinstance(found, np.ndarray | np.generic) else _Unfit(type(found).__name__)


@dataclass(frozen=True)
class _Unfit:
    kind: str


def _unfit(values: tuple[Any, ...]) -> str:
    for v in values:
        if isinstance(v, _Unfit):
            return "sequences, optionals or absent values" if v.kind in ("list", "NoneType") else f"a {v.kind}"
        if v is not None and v.dtype.kind in "OUS":
            return "strings"
    return ""


def _key(op: Op, inputs: tuple[Any, ...]) -> object:
    shapes = tuple(
        None if v is None else (v.shape, str(v.dtype), v.tobytes() if v.size < 9 and v.dtype.kind in "iu" else b"")
        for v in inputs
    )
    return op.type, op.opset, repr(sorted(op.attributes.items(), key=lambda kv: kv[0])), shapes, len(op.outputs)


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
