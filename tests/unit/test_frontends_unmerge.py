"""Which equal initializers are several parameters, and which are one that is read several times."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from planner.frontends import import_bytes
from planner.frontends.file.strip import strip_model

from .frontends_models import constant, external, imported, node, serialised, value

HIDDEN = 400  # more than the importer reads of floats


def named(kind, inputs, outputs, path, **attributes):
    """A node as the TorchScript exporter names it, by the path of its module."""
    made = node(kind, inputs, outputs, **attributes)
    made.name = f"/{path.replace('.', '/')}/{kind}"
    return made


def parameters(graph):
    return {t.name for t in graph.parameters}


def calls(times, path):
    """A layer (product, bias, norm) that is called again and again; `path(name, n)`: the module of its n-th call."""
    nodes = []
    for n in range(times):
        nodes += [
            path("MatMul", f"h{n} cell.a.weight", f"p{n}", "cell.a", n),
            path("Add", f"p{n} cell.a.bias", f"q{n}", "cell.a", n),
            path("LayerNormalization", f"q{n} cell.norm.weight cell.norm.bias", f"h{n + 1}", "cell.norm", n),
        ]
    weights = [external("cell.a.weight", [4, 4])]
    weights += [external(f"cell.{p}", [4]) for p in ("a.bias", "norm.weight", "norm.bias")]
    return imported(nodes, [value("h0", [2, 4])], [f"h{times}"], weights)


def test_a_layer_called_eight_times_has_its_parameters_once_in_torchscript():
    g = calls(8, lambda kind, i, o, module, n: named(kind, i, o, f"{module}_{n}" if n else module))
    assert parameters(g) == {"cell.a.weight", "cell.a.bias", "cell.norm.weight", "cell.norm.bias"}


def test_a_layer_called_eight_times_has_its_parameters_once_with_calls_counted_by_torch_export():
    g = calls(8, lambda kind, i, o, module, n: node(kind, i, o, module=module + (f"@{n}" if n else "")))
    assert parameters(g) == {"cell.a.weight", "cell.a.bias", "cell.norm.weight", "cell.norm.bias"}


def test_modules_with_numbers_for_names_are_modules_where_they_own_something():
    nodes = [
        named("MatMul", "x m.conv.weight", "a0", "m.conv"),
        named("Add", "a0 m.conv.bias", "a", "m.conv"),
        named("MatMul", "a m.conv_1.weight", "b0", "m.conv_1"),
        named("Add", "b0 m.conv.bias", "b", "m.conv_1"),
    ]
    weights = [external("m.conv.weight", [4, 4]), external("m.conv_1.weight", [4, 4]), external("m.conv.bias", [4])]
    g = imported(nodes, [value("x", [2, 4])], ["b"], weights)
    assert parameters(g) == {"m.conv.weight", "m.conv_1.weight", "m.conv.bias", "m.conv_1.bias"}
    assert g.origins == {"m.conv_1.bias": "m.conv.bias"}


def two_modules(bias):
    nodes = [
        node("MatMul", "x wa", "a0", module="m.a"),
        node("Add", f"a0 {bias.name}", "a", module="m.a"),
        node("MatMul", "a wb", "b0", module="m.b"),
        node("Add", f"b0 {bias.name}", "b", module="m.b"),
    ]
    weights = [external("wa", [HIDDEN, HIDDEN]), external("wb", [HIDDEN, HIDDEN]), bias]
    return serialised(nodes, [value("x", [2, HIDDEN])], ["b"], weights)


@pytest.mark.parametrize(
    ("content", "count"), [(np.zeros(HIDDEN), 4), (np.ones(HIDDEN), 4), (np.linspace(0, 1, HIDDEN), 3)]
)
def test_only_initial_values_are_equal_by_chance(content, count):
    data = two_modules(constant("m.a.bias", content, "float32"))
    g = import_bytes(data)
    assert len(parameters(g)) == count
    again = strip_model(data)
    assert len(again) < len(data)
    assert import_bytes(again).digest == g.digest
    assert strip_model(again) == again


def test_a_parameter_that_its_owner_hands_to_others_is_one():
    assert parameters(import_bytes(two_modules(external("m.b.bias", [HIDDEN])))) == {"wa", "wb", "m.b.bias", "m.a.bias"}
    assert parameters(import_bytes(two_modules(external("m.shared.bias", [HIDDEN])))) == {"wa", "wb", "m.shared.bias"}
    assert parameters(import_bytes(two_modules(external("m.bias", [HIDDEN])))) == {"wa", "wb", "m.bias"}


def test_a_name_without_a_path_says_nothing_of_its_owner():
    g = import_bytes(two_modules(external("val_7", [HIDDEN])))
    assert parameters(g) == {"wa", "wb", "val_7", "m.b.bias"}


def test_a_wrapper_may_stand_before_names_or_before_modules():
    nodes = [
        node("LayerNormalization", "x net.a.weight", "a", module="a"),
        node("LayerNormalization", "a net.a.weight", "b", module="b"),
    ]
    g = imported(nodes, [value("x", [2, 4])], ["b"], [external("net.a.weight", [4])])
    assert parameters(g) == {"net.a.weight", "b.weight"}


def test_a_trained_vector_of_two_names_is_one_parameter():
    nodes = [
        node("Identity", "a.bias", "b.bias"),
        node("Add", "x a.bias", "h"),
        node("Mul", "h b.bias", "y"),
    ]
    trained = constant("a.bias", [0.5, 0.25, -1, 3], "float32")
    assert parameters(imported(nodes, [value("x", [2, 4])], ["y"], [trained])) == {"a.bias"}
    fresh = constant("a.bias", [0, 0, 0, 0], "float32")
    g = imported(nodes, [value("x", [2, 4])], ["y"], [fresh])
    assert parameters(g) == {"a.bias", "b.bias"}
    assert g.origins == {"b.bias": "a.bias"}


def test_origins_outlive_the_pickle_of_the_sandbox_and_a_new_batch():
    bias = external("m.a.bias", [HIDDEN])
    g = import_bytes(two_modules(bias), batch=8)
    assert g.origins == {"m.b.bias": "m.a.bias"}
    assert onnx.ModelProto.FromString(two_modules(bias)).graph.initializer[2].name == "m.a.bias"


def test_a_state_that_begins_at_zero_is_no_parameter():
    """TorchScript makes it a constant beside the cell; it is added to what depends on the input."""
    nodes = [
        named("MatMul", "x cell.w", "a", "cell"),
        named("Add", "a /cell/Constant_2_output_0", "b", "cell"),
        named("Mul", "b cell.scale", "y", "cell"),
    ]
    stored = [external("cell.w", [8, 8]), constant("cell.scale", np.ones(8), "float32")]
    zeros = constant("/cell/Constant_2_output_0", np.zeros((4, 8)), "float32")
    assert parameters(imported(nodes, [value("x", [4, 8])], ["y"], [*stored, zeros])) == {"cell.w", "cell.scale"}
