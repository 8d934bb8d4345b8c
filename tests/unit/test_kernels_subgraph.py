"""If, Loop and Scan equal ONNX Runtime on the whole model, in single and in double precision."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.frontends import import_bytes
from planner.ir import Graph, Op
from planner.kernels import NoKernelError, run_local
from planner.verify.double import double_op, in_double
from planner.verify.reference import run_ops, run_whole

FLOAT, BOOL, INT64 = TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64


def info(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, **attributes)


def model(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> Graph:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return import_bytes(made.SerializeToString(), name="g")


def branch(name: str, kind: str) -> onnx.GraphProto:
    """Of an outer activation, an initializer and a constant."""
    nodes = [
        node(kind, ["h"], [f"{name}a"]),
        node("Constant", [], [f"{name}c"], value_float=0.3),
        node("Mul", [f"{name}a", f"{name}c"], [f"{name}b"]),
        node("Add", [f"{name}b", f"{name}w"], [f"{name}y"]),
    ]
    weight = numpy_helper.from_array(np.linspace(0, 1, 4, dtype=np.float32), f"{name}w")
    return helper.make_graph(nodes, name, [], [info(f"{name}y", FLOAT, 3, 4)], [weight])


def conditional() -> Graph:
    nodes = [
        node("Exp", ["x"], ["h"]),
        node("If", ["c"], ["y"], then_branch=branch("a", "Tanh"), else_branch=branch("b", "Erf")),
    ]
    return model(nodes, [info("c", BOOL), info("x", FLOAT, 3, 4)], [info("y", FLOAT, 3, 4)])


def loop() -> Graph:
    """s ← s·w + i·x, five times at most; what was before goes into rows."""
    body = helper.make_graph(
        [
            node("Mul", ["s", "w"], ["sw"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Mul", ["f", "x"], ["fx"]),
            node("Add", ["sw", "fx"], ["t"]),
            node("Identity", ["s"], ["row"]),
            node("Identity", ["go"], ["on"]),
        ],
        "body",
        [info("i", INT64), info("go", BOOL), info("s", FLOAT, 4)],
        [info("on", BOOL), info("t", FLOAT, 4), info("row", FLOAT, 4)],
    )
    nodes = [
        node("Constant", [], ["n"], value_int=5),
        node("Exp", ["x"], ["w"]),
        node("Loop", ["n", "", "x"], ["last", "rows"], body=body),
    ]
    return model(nodes, [info("x", FLOAT, 4)], [info("last", FLOAT, 4), info("rows", FLOAT, 5, 4)])


def scan() -> Graph:
    """Running sums of columns, from the right."""
    body = helper.make_graph(
        [node("Add", ["s", "v"], ["t"]), node("Mul", ["t", "w"], ["out"])],
        "body",
        [info("s", FLOAT, 3), info("v", FLOAT, 3)],
        [info("t", FLOAT, 3), info("out", FLOAT, 3)],
    )
    how = {"num_scan_inputs": 1, "scan_input_axes": [1], "scan_input_directions": [1], "scan_output_axes": [1]}
    nodes = [node("Exp", ["x"], ["w"]), node("Scan", ["x", "m"], ["last", "sums"], body=body, **how)]
    return model(
        nodes, [info("x", FLOAT, 3), info("m", FLOAT, 3, 6)], [info("last", FLOAT, 3), info("sums", FLOAT, 3, 6)]
    )


def values(graph: Graph, condition: bool) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    floats = [t for t in graph.tensors.values() if t.name not in graph.producers and t.value is None and t.is_float]
    drawn = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in floats}
    return drawn | ({"c": np.array(condition)} if "c" in graph.inputs else {})


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("make", [conditional, loop, scan])
def test_bodies_equal_onnx_runtime(make, condition: bool) -> None:
    graph = make()
    given = values(graph, condition)
    whole = run_whole(graph, given)
    single = run_ops(graph, given)
    double = run_ops(
        in_double(graph), {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in given.items()}
    )
    for name, expected in whole.items():
        np.testing.assert_allclose(single[name], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(double[name], expected, rtol=1e-5, atol=1e-6)
        assert double[name].dtype == np.float64


def test_an_operator_without_kernel_within_a_branch_is_named() -> None:
    body = helper.make_graph([node("Mystery", ["x"], ["m"], domain="example")], "b", [], [info("m", FLOAT, 3)])
    text = body.SerializeToString()
    op = Op("y", "If", ("c", "x"), ("y",), {"then_branch": text, "else_branch": text}, 20)
    with pytest.raises(NoKernelError, match=r"operator m \(example::Mystery, opset \d+\) has no kernel"):
        run_local(op, [np.array(True), np.ones(3, np.float32)])


def test_a_tensor_that_was_not_captured_is_named() -> None:
    body = helper.make_graph([node("Neg", ["x"], ["m"])], "b", [], [info("m", FLOAT, 3)]).SerializeToString()
    op = Op("y", "If", ("c",), ("y",), {"then_branch": body, "else_branch": body}, 20)
    with pytest.raises(NoKernelError, match=r"operator y \(If\) has no kernel here: its body reads 'x'"):
        run_local(op, [np.array(True)])


def test_a_loop_without_iterations_hands_its_state_on() -> None:
    body = helper.make_graph(
        [node("Neg", ["s"], ["t"]), node("Identity", ["go"], ["on"])],
        "body",
        [info("i", INT64), info("go", BOOL), info("s", FLOAT, 4)],
        [info("on", BOOL), info("t", FLOAT, 4)],
    ).SerializeToString()
    op = Op("y", "Loop", ("n", "", "x"), ("y",), {"body": body}, 20)
    x = np.arange(4, dtype=np.float32)
    (y,) = run_local(op, [np.array(0), None, x])
    np.testing.assert_array_equal(y, x)


def test_weights_of_a_branch_that_the_file_leaves_out_are_drawn() -> None:
    """The same ones at every run, and float64 in double precision."""
    left_out = numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")
    left_out.ClearField("raw_data")
    left_out.data_location = TensorProto.EXTERNAL
    left_out.external_data.add(key="location", value="elsewhere")
    held = onnx.TensorProto()
    held.CopyFrom(left_out)
    made = [
        node("Constant", [], ["k"], value=held),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "k"], ["m"]),
    ]
    body = helper.make_graph(made, "b", [], [info("m", FLOAT, 3, 4)], [left_out]).SerializeToString()
    op = Op("y", "If", ("c", "x"), ("y",), {"then_branch": body, "else_branch": body}, 20)
    x = np.random.default_rng(0).standard_normal((3, 4))
    single, again = (run_local(op, [np.array(True), x.astype(np.float32)])[0] for _ in range(2))
    (double,) = run_local(double_op(op), [np.array(True), x])
    assert single.any()
    np.testing.assert_array_equal(single, again)
    np.testing.assert_allclose(double, single, rtol=1e-4, atol=1e-5)
    assert double.dtype == np.float64
