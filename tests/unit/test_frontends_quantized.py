"""Quantised weights, their scales and zero points, and weights inside control flow are parameters."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.ir import Role, Tensor

from .frontends_models import BOOL, FLOAT, INT64, constant, external, imported, node, value

INT8, UINT8, INT4, INT32 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.INT32
MS = {"com.microsoft": 1}


def parameters(graph):
    return {t.name for t in graph.parameters}


def test_bytes_of_packed_types_are_halves_and_quarters():
    def size(dtype):
        return Tensor("w", (3, 5), dtype, Role.PARAMETER).stored_bytes

    assert [size(d) for d in ("int8", "int4", "uint4", "int2", "float8e4m3fn", "float4e2m1")] == [15, 8, 8, 4, 15, 8]


@pytest.mark.parametrize("elem", [INT8, UINT8, INT4, TensorProto.FLOAT8E4M3FN])
def test_dequantised_weights(elem):
    nodes = [node("DequantizeLinear", "w scale zero", "d", axis=0), node("MatMul", "x d", "y")]
    stored = [external("w", [64, 32], elem), external("scale", [64]), external("zero", [64], elem)]
    g = imported(nodes, [value("x", [2, 64])], ["y"], stored, opset=21)
    assert parameters(g) == {"w", "scale", "zero"}
    assert g.loss is None


def test_a_small_dequantised_weight_is_not_folded_away():
    nodes = [node("DequantizeLinear", "w scale", "d"), node("MatMul", "x d", "y")]
    stored = [constant("w", np.arange(64).reshape(8, 8), "int8"), constant("scale", 0.5, "float32")]
    g = imported(nodes, [value("x", [2, 8])], ["y"], stored)
    assert parameters(g) == {"w"}
    assert g.tensors["w"].value is None
    assert g.tensors["scale"].role is Role.CONSTANT


def test_arithmetic_that_dequantises():
    """Whole tables, as converters write them: cast, shift, scale, look up."""
    nodes = [
        node("Cast", "table", "t0", to=FLOAT),
        node("Sub", "t0 zero", "t1"),
        node("Mul", "t1 scale", "t2"),
        node("Gather", "t2 ids", "e"),
        node("Cast", "w", "w0", to=FLOAT),
        node("Mul", "w0 ws", "w1"),
        node("Transpose", "w1", "w2"),
        node("MatMul", "e w2", "y"),
    ]
    stored = [external("table", [100, 8], INT8), external("zero", [100, 1]), external("scale", [100, 1])]
    stored += [external("w", [4, 8], UINT8), external("ws", [4, 1])]
    g = imported(nodes, [value("ids", [2, 3], INT64)], ["y"], stored)
    assert parameters(g) == {"table", "zero", "scale", "w", "ws"}


@pytest.mark.parametrize(
    ("kind", "inputs", "stored"),
    [
        ("MatMulInteger", "xi w xz wz", {"w": ([8, 4], INT8), "wz": ([4], INT8)}),
        (
            "QLinearMatMul",
            "xi xs xz w ws wz xs xz",
            {"w": ([8, 4], INT8), "ws": ([4], FLOAT), "wz": ([4], INT8)},
        ),
        (
            "QGemm",
            "xi xs xz w ws wz b",
            {"w": ([8, 4], INT8), "ws": ([4], FLOAT), "wz": ([4], INT8), "b": ([4], INT32)},
        ),
        ("MatMulIntegerToFloat", "xi w xs ws xz wz", {"w": ([8, 4], INT8), "ws": ([4], FLOAT), "wz": ([4], INT8)}),
        ("DynamicQuantizeMatMul", "x w ws wz", {"w": ([8, 4], INT8), "ws": ([4], FLOAT), "wz": ([4], INT8)}),
    ],
)
def test_operands_of_quantised_products(kind, inputs, stored):
    domain = "" if kind in ("MatMulInteger", "QLinearMatMul") else "com.microsoft"
    tensors = [external(name, dims, elem) for name, (dims, elem) in stored.items()]
    scalars = [constant("xs", 0.1, "float32"), constant("xz", 0, "int8")]
    nodes = [node(kind, inputs, "y", domain=domain), node("Cast", "x", "spare", to=INT8)]
    data = [value("xi", [2, 8], INT8), value("x", [2, 8])]
    g = imported(nodes, data, ["y", "spare"], [*tensors, *scalars], domains=MS)
    assert parameters(g) == set(stored)


def test_operands_of_quantised_convolutions():
    nodes = [node("QLinearConv", "x s z w ws wz s z b", "y"), node("ConvInteger", "x v z vz", "u")]
    stored = [
        external("w", [4, 3, 3, 3], INT8),
        external("ws", [4]),
        constant("wz", [0, 0, 0, 0], "int8"),
        external("b", [4], INT32),
        external("v", [4, 3, 1, 1], INT8),
        constant("vz", 0, "int8"),
        constant("s", 0.1, "float32"),
        constant("z", 0, "int8"),
    ]
    g = imported(nodes, [value("x", [1, 3, 8, 8], INT8)], ["y", "u"], stored)
    assert parameters(g) == {"w", "ws", "wz", "b", "v"}
    assert g.tensors["wz"].value.tolist() == [0, 0, 0, 0]


def test_packed_weights():
    nodes = [node("MatMulNBits", "x w s z", "y", domain="com.microsoft", K=8192, N=8192, bits=4, block_size=32)]
    stored = [
        external("w", [8192, 256, 16], UINT8),
        external("s", [8192 * 256]),
        external("z", [8192 * 128], UINT8),
    ]
    g = imported(nodes, [value("x", [1, 8192])], ["y"], stored, domains=MS)
    assert parameters(g) == {"w", "s", "z"}
    assert sum(t.stored_bytes for t in g.parameters) == 8192 * 8192 // 2 + 4 * 8192 * 256 + 8192 * 128


def test_weights_that_the_graph_quantises_itself():
    nodes = [
        node("QuantizeLinear", "w s z", "q", axis=0),
        node("DequantizeLinear", "q s z", "d", axis=0),
        node("Conv", "x d", "y"),
    ]
    stored = [external("w", [4, 3, 3, 3]), external("s", [4]), external("z", [4], INT8)]
    g = imported(nodes, [value("x", [1, 3, 8, 8])], ["y"], stored)
    assert parameters(g) == {"w", "s", "z"}


def test_quantised_activations_have_no_weights():
    nodes = [node("QuantizeLinear", "x s z", "q", axis=1), node("DequantizeLinear", "q s z", "y", axis=1)]
    g = imported(nodes, [value("x", [2, 4])], ["y"], [external("s", [4]), external("z", [4], INT8)])
    assert parameters(g) == set()


def test_what_is_read_as_shape_index_or_mask_stays_constant():
    nodes = [
        node("Gather", "x ids", "a"),
        node("Reshape", "a shape", "b"),
        node("Cast", "mask8", "mask", to=BOOL),
        node("Where", "mask b low", "c"),
        node("Gather", "classes labels", "y"),
        node("Slice", "c begin end", "z"),
    ]
    stored = [
        constant("ids", [0, 2, 1]),
        constant("shape", [3, 4]),
        constant("mask8", np.ones((3, 4)), "uint8"),
        constant("low", -1e9, "float32"),
        constant("classes", np.arange(6), "int64"),
        constant("begin", [0]),
        constant("end", [2]),
    ]
    g = imported(nodes, [value("x", [3, 2, 2]), value("labels", [5], INT64)], ["y", "z"], stored)
    assert parameters(g) == set()


def branch(name, kind, weight, constants=()):
    out = value(f"{name}_out", [2, 4])
    held = [t for t in constants if isinstance(t, TensorProto)]
    return helper.make_graph([helper.make_node(kind, ["x", weight], [out.name])], name, [], [out], held)


def test_weights_that_branches_capture_or_hold_are_parameters():
    inside = external("inner", [4, 4])
    nodes = [
        node(
            "If",
            "c",
            "y",
            then_branch=branch("t", "MatMul", "outer"),
            else_branch=branch("e", "MatMul", "inner", [inside]),
        )
    ]
    g = imported(nodes, [value("x", [2, 4]), value("c", [], BOOL)], ["y"], [external("outer", [4, 4])])
    assert parameters(g) == {"outer", "inner"}
    assert set(g.op("y").inputs) == {"c", "x", "outer", "inner"}


def test_weights_of_the_same_name_in_two_branches_are_two():
    held = [numpy_helper.from_array(np.full((4, 4), v, np.float32), "w") for v in (1, 2)]
    nodes = [
        node(
            "If",
            "c",
            "y",
            then_branch=branch("t", "MatMul", "w", held[:1]),
            else_branch=branch("e", "MatMul", "w", held[1:]),
        )
    ]
    g = imported(nodes, [value("x", [2, 4]), value("c", [], BOOL)], ["y"])
    assert parameters(g) == {"w", "w_1"}


def test_weights_of_a_recurrent_layer_inside_a_branch_are_found_behind_views():
    out = value("then_out", None)
    body = helper.make_graph(
        [
            node("Constant", "", "zero", value=constant("zero", [0])),
            node("Unsqueeze", "w zero", "w1"),
            node("Unsqueeze", "r zero", "r1"),
            node("Concat", "bi bh", "b0", axis=0),
            node("Unsqueeze", "b0 zero", "b1"),
            node("LSTM", "x w1 r1 b1", "then_out", hidden_size=4),
        ],
        "t",
        [],
        [out],
    )
    other = helper.make_graph([node("Unsqueeze", "x axis", "else_out")], "e", [], [value("else_out", None)])
    stored = [external("w", [16, 3]), external("r", [16, 4]), external("bi", [16]), external("bh", [16])]
    nodes = [node("If", "c", "y", then_branch=body, else_branch=other)]
    data = [value("x", [5, 2, 3]), value("c", [], BOOL)]
    g = imported(nodes, data, [value("y", None)], [*stored, constant("axis", [1])])
    assert parameters(g) == {"w", "r", "bi", "bh"}


def test_scales_of_integers_are_not_trained():
    from planner.rules.bound import bind_rules
    from planner.work.activity import active_tensors

    nodes = [
        node("DequantizeLinear", "w s", "d", axis=0),
        node("MatMul", "x d", "h"),
        node("MatMul", "h v", "p"),
        node("SoftmaxCrossEntropyLoss", "p labels", "loss"),
    ]
    stored = [external("w", [8, 8], INT8), external("s", [8]), external("v", [8, 8])]
    data = [value("x", [4, 8]), value("labels", [4], INT64)]
    g = imported(nodes, data, [value("loss", [])], stored)
    assert parameters(g) == {"w", "s", "v"}
    assert {"v", "p", "h", "d", "s", "w"} & active_tensors(g, bind_rules(g)[0]) == {"v", "p"}


def test_known_schemes_hold_quantised_weights_as_they_are_stored():
    from planner.cost_models import load_profile
    from planner.evaluate import Configuration, predict, workload_of_configuration

    nodes = [
        node("DequantizeLinear", "w s", "d", axis=0),
        node("MatMul", "x d", "h"),
        node("MatMul", "h v", "p"),
        node("SoftmaxCrossEntropyLoss", "p labels", "loss"),
    ]
    stored = [external("w", [512, 512], INT8), external("s", [512]), external("v", [512, 8])]
    data = [value("x", [4, 512]), value("labels", [4], INT64)]
    g = imported(nodes, data, [value("loss", [])], stored)
    c = Configuration()
    held = predict(workload_of_configuration(g, c, load_profile("a100-80")), c, load_profile("a100-80")).memory
    assert held["weights"] == 512 * 512 + 512 * 2 + 512 * 8 * c.weight_bytes
    assert held["optimizer"] == 512 * 8 * 12


def test_packed_weights_have_a_stored_layout_and_take_memory():
    from planner.cost_models import load_profile
    from planner.errors import InfeasibleError
    from planner.ir import DeviceMesh
    from planner.planning import Request, make_plan
    from planner.pricing import Settings

    nodes = [node("MatMulNBits", "x w s", "y", domain="com.microsoft", K=1024, N=1024, bits=4, block_size=32)]
    stored = [external("w", [1024, 32, 16], UINT8), external("s", [1024, 32])]
    g = imported(nodes, [value("x", [4, 1024])], ["y"], stored, domains=MS)
    held = 1024 * 512 + 2 * 1024 * 32

    def planned(devices, limit):
        settings = Settings(training=False)
        return make_plan(
            g,
            Request(devices, load_profile("a100-80"), settings, meshes=(DeviceMesh.of(devices),), memory_limit=limit),
        )

    with pytest.raises(InfeasibleError):
        planned(1, held)
    assert planned(1, 2 * held).peak_memory_bytes > held
    halves = planned(2, held).priced.stored_layouts
    assert set(halves) == {"w", "s"}
