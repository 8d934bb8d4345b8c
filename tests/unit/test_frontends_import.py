"""Reading, binding, inference, folding, roles and losses on small models."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx import helper

from planner.errors import InputError, UsageError
from planner.frontends import import_bytes, load_model
from planner.frontends.file.dtypes import ELEM_TYPE
from planner.ir import Role, Tensor
from planner.ir.tensor import ITEM_BYTES

from .frontends_models import (
    BOOL,
    FLOAT,
    INT64,
    constant,
    external,
    imported,
    node,
    serialised,
    transformer,
    value,
)


def roles(graph):
    return {t.name: t.role for t in graph.tensors.values()}


def test_operators_keep_type_domain_opset_and_source():
    g = imported(
        [node("Relu", "x", "a", name="first"), node("Gelu", "a", "y", domain="com.microsoft")],
        [value("x", [2, 3])],
        ["y"],
        opset=17,
        domains={"com.microsoft": 1},
    )
    assert [(op.type, op.opset, op.source) for op in g.ops] == [
        ("Relu", 17, "first"),
        ("com.microsoft::Gelu", 1, ""),
    ]
    assert g.tensors["y"].shape == (2, 3)
    assert g.tensors["y"].dtype == "float32"


def test_nodes_in_any_order_are_sorted():
    g = imported([node("Relu", "a", "y"), node("Neg", "x", "a")], [value("x", [2])], ["y"])
    assert [op.type for op in g.ops] == ["Neg", "Relu"]


def test_what_no_output_needs_is_dropped():
    g = imported([node("Relu", "x", "y"), node("Neg", "x", "unused")], [value("x", [2]), value("z", [3])], ["y"])
    assert [op.name for op in g.ops] == ["y"]
    assert g.inputs == ("x", "z")
    assert "unused" not in g.tensors


def test_shape_arithmetic_disappears():
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("Reshape", "x target", "y"),
    ]
    constants = [constant("zero", 0), constant("axes", [0]), constant("rest", [-1])]
    g = imported(nodes, [value("x", ["batch", 4, 5])], ["y"], constants, bind={"batch": 3})
    assert [op.type for op in g.ops] == ["Reshape"]
    assert g.tensors["y"].shape == (3, 20)
    assert g.tensors["target"].value.tolist() == [3, -1]


def test_large_results_are_not_folded():
    nodes = [node("Range", "zero far one", "r"), node("Cast", "r", "y", to=FLOAT)]
    g = imported(nodes, [], ["y"], [constant("zero", 0), constant("far", 10**9), constant("one", 1)])
    assert g.tensors["y"].shape == (10**9,)
    assert g.tensors["r"].value is None


def test_index_constants_keep_values_and_weights_do_not():
    g = imported(
        [node("Gather", "table ids", "e"), node("MatMul", "e w", "y")],
        [],
        ["y"],
        [
            constant("ids", np.arange(2000)),
            constant("w", np.ones((4, 4)), "float32"),
            external("table", [3000, 4]),
        ],
    )
    assert g.tensors["ids"].value.shape == (2000,)
    assert g.tensors["w"].role is Role.PARAMETER
    assert g.tensors["w"].value is None
    assert g.tensors["table"].role is Role.PARAMETER


def test_constant_nodes_are_sources():
    nodes = [node("Constant", "", "c", value_float=2.0), node("Mul", "x c", "y")]
    g = imported(nodes, [value("x", [3])], ["y"])
    assert [op.type for op in g.ops] == ["Mul"]
    assert g.tensors["c"].value == np.float32(2)


def test_shapes_that_depend_on_data_are_none():
    g = imported([node("NonZero", "x", "y")], [value("x", [3, 4])], ["y"])
    assert g.tensors["y"].shape is None


def test_shapes_of_the_file_serve_unknown_operators():
    data = serialised(
        [node("Mystery", "x", "a", domain="custom"), node("Relu", "a", "y")],
        [value("x", ["n", 4])],
        [value("y", ["n", 7])],
        domains={"custom": 1},
    )
    import onnx

    model = onnx.ModelProto.FromString(data)
    model.graph.value_info.append(value("a", ["n", 7]))
    g = import_bytes(model.SerializeToString(), bind={"n": 5})
    assert g.tensors["y"].shape == (5, 7)


def test_local_functions_are_inlined():
    f = helper.make_function("local", "twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])],
                             [helper.make_opsetid("", 20)])  # fmt: skip
    data = serialised(
        [node("twice", "x", "y", domain="local")],
        [value("x", [2])],
        ["y"],
        domains={"local": 1},
        functions=[f],
    )
    assert [op.type for op in import_bytes(data).ops] == ["Add"]


def test_control_flow_shows_what_it_captures():
    def branch(name, kind):
        out = value(f"{name}_out", [3])
        return helper.make_graph([helper.make_node(kind, ["hidden"], [out.name])], name, [], [out])

    nodes = [
        node("If", "c", "y", then_branch=branch("t", "Relu"), else_branch=branch("e", "Neg")),
        node("Relu", "x", "hidden"),
    ]
    g = imported(nodes, [value("x", [3]), value("c", [], BOOL)], ["y"])
    assert [op.type for op in g.ops] == ["Relu", "If"]
    assert g.ops[1].inputs == ("c", "hidden")
    assert isinstance(g.ops[1].attributes["then_branch"], bytes)
    assert g.tensors["y"].shape == (3,)


@pytest.mark.parametrize("dim", [None, 0, -1, "?", "-1"])
def test_open_dimensions_have_a_name_of_their_own(dim):
    data = serialised([node("Relu", "x", "y")], [value("x", [2, dim])], ["y"])
    with pytest.raises(InputError, match=r"--bind x\.1"):
        import_bytes(data)
    assert import_bytes(data, bind={"x.1": 9}).tensors["y"].shape == (2, 9)


def test_unbound_dimensions_are_named_with_their_inputs_and_the_option():
    data = serialised([node("Add", "a b", "y")], [value("a", ["batch", "seq"]), value("b", ["batch", "seq"])], ["y"])
    with pytest.raises(InputError) as caught:
        import_bytes(data, bind={"batch": 2})
    assert "'seq' (a axis 1, b axis 1): give --bind seq=SIZE" in str(caught.value)
    assert import_bytes(data, bind={"a.0": 2, "seq": 3}).tensors["y"].shape == (2, 3)


@pytest.mark.parametrize("bind", [{"bathc": 2}, {"batch": 0}, {"batch": 2, "x.0": 3}])
def test_wrong_bindings_are_usage_errors(bind):
    with pytest.raises(UsageError, match=r"bathc|already bound|at least 1"):
        import_bytes(serialised([node("Relu", "x", "y")], [value("x", ["batch"])], ["y"]), bind=bind)


def test_batch_binds_the_first_or_the_named_dimension():
    data = serialised([node("Add", "x s", "y")], [value("x", ["n0", 4]), value("s", [4])], ["y"])
    assert import_bytes(data, batch=6).tensors["y"].shape == (6, 4)
    data = serialised([node("Relu", "x", "y")], [value("x", ["time", "batch", 4])], ["y"])
    assert import_bytes(data, batch=6, bind={"time": 5}).tensors["y"].shape == (5, 6, 4)


def test_old_files_list_initializers_as_inputs():
    w = constant("w", np.ones(3), "float32")
    g = imported([node("Mul", "x w", "y")], [value("x", [2, 3]), value("w", [3])], ["y"], [w], opset=7, ir_version=3)
    assert g.inputs == ("x",)
    with pytest.raises(InputError, match="'w' is not among the graph's inputs"):
        imported([node("Mul", "x w", "y")], [value("x", [2, 3])], ["y"], [w], opset=7, ir_version=3)


def test_roles_of_a_convolutional_block():
    nodes = [
        node("Sub", "x image_mean", "centred"),
        node("Conv", "centred filter fbias", "c"),
        node("BatchNormalization", "c scale bias mean var", "b"),
        node("Mul", "b two", "y"),
    ]
    constants = [
        constant("image_mean", np.ones((1, 3, 1, 1)), "float32"),
        external("filter", [8, 3, 3, 3]),
        *(external(n, [8]) for n in ("fbias", "scale", "bias", "mean", "var")),
        constant("two", 2.0, "float32"),
    ]
    constants[0].name = "onnx::Sub_12"
    nodes[0].input[1] = "onnx::Sub_12"
    found = roles(imported(nodes, [value("x", [2, 3, 8, 8])], ["y"], constants))
    assert {n for n, r in found.items() if r is Role.PARAMETER} == {"filter", "fbias", "scale", "bias"}
    assert found["mean"] is found["var"] is found["two"] is found["onnx::Sub_12"] is Role.CONSTANT
    assert found["x"] is Role.INPUT


def test_masks_and_rotary_tables_are_constants():
    nodes = [
        node("MatMul", "x k", "s"),
        node("Add", "s mask", "m"),
        node("Softmax", "m", "p"),
        node("Mul", "positions inv_freq", "angle"),
        node("Cos", "angle", "cos"),
        node("Mul", "p cos", "y"),
    ]
    constants = [external(n, [6, 6]) for n in ("k", "mask", "positions", "inv_freq")]
    found = roles(imported(nodes, [value("x", [2, 6, 6])], ["y"], constants))
    assert {n for n, r in found.items() if r is Role.PARAMETER} == {"k"}


def test_weights_that_are_fed_and_data_that_is_not():
    nodes = [node("MatMul", "x w", "a"), node("Add", "a layer.bias", "y")]
    inputs = [value("x", ["batch", 4]), value("w", [4, 5]), value("layer.bias", [5])]
    found = roles(imported(nodes, inputs, ["y"], bind={"batch": 2}))
    assert found["x"] is Role.INPUT
    assert found["w"] is found["layer.bias"] is Role.PARAMETER
    found = roles(imported([node("MatMul", "q k", "y")], [value("q", [2, 4, 8]), value("k", [2, 8, 4])], ["y"]))
    assert found["q"] is found["k"] is Role.INPUT


def test_fills_in_place_of_weights_become_sources():
    nodes = [
        node("ConstantOfShape", "ws", "w"),
        node("ConstantOfShape", "ms", "mean"),
        node("ConstantOfShape", "vs", "var"),
        node("Conv", "x w", "c"),
        node("BatchNormalization", "c w1 w1 mean var", "y"),
        node("ConstantOfShape", "vs", "w1"),
    ]
    shapes = [constant("ws", [8, 3, 1, 1]), constant("ms", [8]), constant("vs", [8])]
    g = imported(nodes, [value("x", [2, 3, 4, 4])], ["y"], shapes)
    assert [op.type for op in g.ops] == ["Conv", "BatchNormalization"]
    assert {t.name for t in g.parameters} == {"w", "w1"}
    assert g.tensors["mean"].role is g.tensors["var"].role is Role.CONSTANT


def test_equal_light_initializers_are_unmerged_by_module():
    nodes = [
        node("MatMul", "x wa", "a0", module="m.a"),
        node("Add", "a0 m.a.bias", "a", module="m.a"),
        node("LayerNormalization", "a scale m.a.bias", "n", module="m.norm"),
        node("MatMul", "n wb", "b0", module="m.b"),
        node("Add", "b0 m.a.bias", "b", module="m.b"),
        node("MatMul", "b wa", "y", module="m.tied"),
    ]
    weights = [
        external("wa", [4, 4]),
        external("wb", [4, 4]),
        external("scale", [4]),
        external("m.a.bias", [4]),
    ]
    g = imported(nodes, [value("x", [2, 4])], ["y"], weights)
    assert {t.name for t in g.parameters} == {"wa", "wb", "scale", "m.a.bias", "m.norm.bias", "m.b.bias"}
    assert [(op.name, k) for op, k in g.consumers["wa"]] == [("a0", 1), ("y", 1)]


def test_identities_of_initializers():
    nodes = [
        node("Identity", "a.bias", "b.bias"),
        node("Identity", "embed.weight", "head.weight"),
        node("MatMul", "x embed.weight", "h0"),
        node("Add", "h0 a.bias", "h1"),
        node("MatMul", "h1 head.weight", "h2"),
        node("Add", "h2 b.bias", "y"),
    ]
    g = imported(nodes, [value("x", [2, 4])], ["y"], [external("a.bias", [4]), external("embed.weight", [4, 4])])
    assert {t.name for t in g.parameters} == {"a.bias", "b.bias", "embed.weight"}
    assert g.op("h2").inputs == ("h1", "embed.weight")
    assert g.op("y").inputs == ("h2", "b.bias")


def test_loss_is_found_and_gradients_are_not_lost():
    assert import_bytes(transformer(1)).loss == "loss"
    squared = [
        node("Sub", "x target", "d"),
        node("Mul", "d d", "s"),
        node("ReduceMean", "s", "y", keepdims=0),
    ]
    g = imported(squared, [value("x", [2, 3]), value("target", [2, 3])], [value("y", [])])
    assert g.loss == "y"
    g = imported([node("ReduceMean", "x", "y", keepdims=0)], [value("x", [2, 3])], [value("y", [])])
    assert g.loss is None
    nodes = [*squared, node("MatMul", "x m.w", "p"), node("Identity", "m.w", "m.w_grad")]
    inputs = [value("x", [2, 3]), value("target", [2, 3]), value("m.w", [3, 3])]
    assert imported(nodes, inputs, ["y", "p", "m.w_grad"]).loss is None


@pytest.mark.parametrize("stated", [True, False], ids=["by a constant", "by the file alone"])
def test_a_reshape_into_more_elements_than_there_are_is_refused_by_name_and_shapes(stated):
    inputs = [value("x", [64, 64])] + ([] if stated else [value("s", [2], INT64)])
    initializers = [constant("s", [128, 64])] if stated else []
    with pytest.raises(InputError, match=r"Reshape 'y' .*\[64, 64\] has 4096 elements.*\[128, 64\] has 8192"):
        imported([node("Reshape", "x s", "y")], inputs, [value("y", [128, 64])], initializers)


def test_load_model_equals_import_bytes(tmp_path):
    (tmp_path / "m.onnx").write_bytes(transformer(2))
    began = time.monotonic()
    loaded = load_model(tmp_path / "m.onnx", batch=4)
    assert time.monotonic() - began < 20
    assert loaded.digest == import_bytes(transformer(2), batch=4).digest
    assert loaded.name == "m"


def test_integer_inputs_have_their_type():
    g = imported([node("Cast", "x", "y", to=FLOAT)], [value("x", [2], INT64)], ["y"])
    assert g.tensors["x"].dtype == "int64"
    assert not g.tensors["x"].is_float


def test_every_type_of_an_element_has_a_size():
    assert set(ELEM_TYPE) == set(ITEM_BYTES)
    assert Tensor("t", (4, 2), "float6e2m3", Role.CONSTANT).stored_bytes == 6
