"""The graph in double precision: no narrow float is left, and nothing else changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.frontends import import_bytes
from planner.ir import Graph, Op, Role, Tensor
from planner.verify.data import random_tensors
from planner.verify.double import double_op, in_double
from planner.verify.reference import run_ops
from tests.unit.test_vjp_reference import network


def branch(name: str, factor: float) -> onnx.GraphProto:
    """x · factor by way of half precision, with everything that may hold a type."""
    nodes = [
        helper.make_node("Constant", [], [f"{name}_f"], value_float=factor),
        helper.make_node("Mul", ["x", f"{name}_f"], [f"{name}_m"]),
        helper.make_node("Cast", [f"{name}_m"], [f"{name}_h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [f"{name}_h"], [f"{name}_c"], to=TensorProto.FLOAT),
        helper.make_node("Add", [f"{name}_c", f"{name}_w"], [f"{name}_y"]),
    ]
    info = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, [3])
    weight = numpy_helper.from_array(np.ones(3, np.float32), f"{name}_w")
    return helper.make_graph(nodes, name, [], [info], [weight])


def conditional() -> bytes:
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", 2.0), else_branch=branch("b", 3.0))
    fed = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
    ]
    out = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])]
    model = helper.make_model(helper.make_graph([node], "g", fed, out), opset_imports=[helper.make_opsetid("", 20)])
    return model.SerializeToString()


def types_within(graph: onnx.GraphProto) -> set[int]:
    found = {t.data_type for t in graph.initializer} | {o.type.tensor_type.elem_type for o in graph.output}
    for node in graph.node:
        for a in node.attribute:
            assert a.name not in ("value_float", "value_floats")
            if a.name == "to":
                found.add(a.i)
            if a.type == onnx.AttributeProto.TENSOR:
                found.add(a.t.data_type)
    return found


def test_every_narrow_float_is_wide_and_the_rest_stays() -> None:
    graph = network("float32")
    wide = in_double(graph)
    assert [op.name for op in wide.ops] == [op.name for op in graph.ops]
    assert (wide.inputs, wide.outputs, wide.loss) == (graph.inputs, graph.outputs, graph.loss)
    for name, t in graph.tensors.items():
        assert wide.tensors[name].dtype == ("float64" if t.is_float else t.dtype)
        assert (wide.tensors[name].shape, wide.tensors[name].role) == (t.shape, t.role)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_values_of_constants_are_the_same_numbers(dtype: str) -> None:
    value = np.array([0.1, -2.5], dtype=getattr(ml_dtypes, dtype, dtype))
    graph = Graph((), {"c": Tensor("c", (2,), dtype, Role.CONSTANT, value)}, (), ("c",))
    wide = in_double(graph).tensors["c"]
    assert wide.value is not None
    assert (wide.dtype, wide.value.dtype) == ("float64", np.float64)
    np.testing.assert_array_equal(wide.value, value.astype(np.float64))


def test_eight_bits_and_integers_stay() -> None:
    names = ["int8", "uint4", "int64", "bool", "float8e4m3fn", "float4e2m1", "float64", "string"]
    tensors = {n: Tensor(n, (2,), n, Role.INPUT) for n in names}
    wide = in_double(Graph((), tensors, tuple(names), ()))
    assert [wide.tensors[n].dtype for n in names] == names


@pytest.mark.parametrize(
    ("op", "attribute"),
    [
        (Op("y", "Cast", ("x",), ("y",), {"to": TensorProto.FLOAT16}, 20), "to"),
        (Op("y", "RandomNormal", (), ("y",), {"shape": (3,)}, 20), "dtype"),
        (Op("y", "RandomUniform", (), ("y",), {"shape": (3,), "dtype": TensorProto.BFLOAT16}, 20), "dtype"),
        (Op("y", "EyeLike", ("x",), ("y",), {"dtype": TensorProto.FLOAT}, 20), "dtype"),
        (Op("y", "HannWindow", ("x",), ("y",), {}, 20), "output_datatype"),
        (Op("y", "DequantizeLinear", ("x", "s"), ("y",), {"output_dtype": TensorProto.FLOAT16}, 23), "output_dtype"),
    ],
)
def test_attributes_that_name_a_type_follow(op: Op, attribute: str) -> None:
    assert double_op(op).attributes[attribute] == TensorProto.DOUBLE


def test_attributes_that_name_other_types_stay() -> None:
    for to in (TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.DOUBLE):
        op = Op("y", "Cast", ("x",), ("y",), {"to": to}, 20)
        assert double_op(op) is op


def test_filled_constants_are_wide() -> None:
    for given in ({}, {"value": np.ones(1, np.float32)}):
        wide = double_op(Op("y", "ConstantOfShape", ("s",), ("y",), given, 20))
        assert wide.attributes["value"].dtype == np.float64


@pytest.mark.parametrize("given", [{"value_float": 0.5}, {"value_floats": (0.5, 1.5)}, {"value": np.float32([0.5])}])
def test_a_constant_node_holds_doubles(given: dict[str, object]) -> None:
    (wide,) = double_op(Op("y", "Constant", (), ("y",), given, 20)).attributes.values()
    assert wide.dtype == np.float64
    np.testing.assert_array_equal(wide, np.asarray(next(iter(given.values()))))


def test_branches_are_rewritten_within() -> None:
    graph = in_double(import_bytes(conditional(), name="conditional"))
    (op,) = graph.ops
    for name in ("then_branch", "else_branch"):
        assert types_within(onnx.GraphProto.FromString(op.attributes[name])) == {TensorProto.DOUBLE}


def test_a_loss_in_double_is_the_loss() -> None:
    graph = network("float32")
    values = random_tensors(graph, 0)
    wide = in_double(graph)
    found = run_ops(wide, {n: v.astype(np.float64) if v.dtype == np.float32 else v for n, v in values.items()})
    for name, value in run_ops(graph, values).items():
        assert found[name].dtype == (np.float64 if value.dtype == np.float32 else value.dtype)
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)
