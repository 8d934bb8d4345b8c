"""Repeated blocks, siblings, export and inspection."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from planner.frontends import import_bytes
from planner.frontends.facts.flops import flops
from planner.frontends.file.export import to_model
from planner.frontends.inspect import inspect_graph
from planner.frontends.resized.blocks import repeated_blocks
from planner.frontends.resized.siblings import cut_layers
from planner.work.units import units_of

from .frontends_models import external, imported, node, transformer, value


@pytest.mark.parametrize("layers", [2, 3, 7])
def test_layers_are_found(layers):
    (run,) = repeated_blocks(import_bytes(transformer(layers)))
    assert (run.count, run.size) == (layers, 21)
    assert [b[-1].split("_")[-1] for b in run.blocks] == [b[-1].split("_")[-1] for b in run.blocks]


@pytest.mark.parametrize("layers", [2, 5])
def test_a_first_layer_that_reads_what_is_fed_is_one_of_them(layers):
    nodes, weights = [], []
    for i in range(layers):
        weights.append(external(f"w{i}", [4, 4]))
        nodes += [node("MatMul", f"x{i} w{i}", f"a{i}"), node("Relu", f"a{i}", f"b{i}")]
        nodes.append(node("Add", f"x{i} b{i}", f"x{i + 1}"))
    graph = imported(nodes, [value("x0", [2, 4])], [f"x{layers}"], weights)
    (run,) = repeated_blocks(graph)
    assert (run.count, run.size) == (layers, 3)
    cut, _ = cut_layers(graph, 1)
    assert [op.type for op in cut.ops] == ["MatMul", "Relu", "Add"]


def test_layers_whose_weights_are_frozen_are_a_run_of_their_own():
    nodes, weights = [], []
    for i in range(6):
        weights.append(external(f"w{i}", [4, 4]))
        nodes += [node("MatMul", f"x{i} w{i}", f"a{i}"), node("Relu", f"a{i}", f"b{i}")]
        nodes.append(node("Add", f"x{i} b{i}", f"x{i + 1}"))
    graph = imported(nodes, [value("x0", [2, 4])], ["x6"], weights)
    frozen = {n: replace(t, frozen=n in ("w0", "w1")) for n, t in graph.tensors.items()}
    graph = replace(graph, tensors=frozen)
    assert [(r.count, r.size) for r in repeated_blocks(graph)] == [(2, 3), (4, 3)]
    assert inspect_graph(graph)["parameters"] == {"tensors": 6, "elements": 96, "bytes": 384, "frozen": 32}


def test_prepared_weights_go_with_the_layers_that_read_them():
    """All weights are prepared before the layers, as in graphs with a backward; the last layer is of another kind."""
    nodes, weights = [], []
    for i in range(5):
        weights += [external(f"{k}{i}", [4, 4]) for k in "uvw"]
        kinds = {"u": "Transpose", "v": "Neg", "w": "Exp"}
        nodes += [node(kind, f"{k}{i}", f"{k}t{i}") for k, kind in kinds.items()]
    for i in range(5):
        nodes += [node("MatMul", f"x{i} ut{i}", f"a{i}"), node("Relu", f"a{i}", f"r{i}")]
        nodes += [node("MatMul", f"r{i} vt{i}", f"b{i}"), node("Add" if i < 4 else "Sub", f"b{i} wt{i}", f"x{i + 1}")]
    graph = imported(nodes, [value("x0", [4, 4])], ["x5"], weights)
    assert [(r.count, r.size) for r in repeated_blocks(graph)] == [(5, 3), (4, 4)]
    cut, _ = cut_layers(graph, 2)
    assert {t.name for t in cut.parameters} == {f"{k}{i}" for k in "uvw" for i in (0, 1, 4)}


def with_masks(layers, *, hoisted):
    """Layers that each make a mask of a common one, as exporters write them: in the layer, or before all layers; every
    other layer shifts it, and the results are read in two places."""
    nodes, weights, made = [node("Not", "m", "n")], [], []
    for i in range(layers):
        weights.append(external(f"w{i}", [4, 4]))
        masks = [node("Cast", "n", f"c{i}", to=1), node("Neg" if i % 2 else "Abs", f"c{i}", f"d{i}")]
        masks.append(node("Unsqueeze", "n zero", f"u{i}"))
        masks.append(node("Squeeze", f"u{i} zero", f"v{i}"))
        layer = [node("MatMul", f"x{i} w{i}", f"a{i}"), node("Where", f"v{i} a{i} d{i}", f"b{i}")]
        layer += [node("Where", f"v{i} b{i} d{i}", f"e{i}"), node("Add", f"x{i} e{i}", f"x{i + 1}")]
        (nodes if hoisted else made).extend(masks)
        made += layer
    weights.append(onnx.numpy_helper.from_array(np.array([0]), "zero"))
    return imported(
        [*nodes, *made], [value("x0", [4, 4]), value("m", [4, 4], onnx.TensorProto.BOOL)], [f"x{layers}"], weights
    )


@pytest.mark.parametrize("hoisted", [False, True])
def test_what_a_layer_makes_of_a_common_mask_belongs_to_it(hoisted):
    """As far as all layers make the same: not what is not alike, and what that alone is made of."""
    graph = with_masks(6, hoisted=hoisted)
    (run,) = repeated_blocks(graph)
    assert [[graph.op(name).type for name in block] for block in run.blocks] == [
        ["Unsqueeze", "Squeeze", "MatMul", "Where", "Where", "Add"]
    ] * 6
    assert [graph.op(block[1]).outputs for block in run.blocks] == [(f"v{i}",) for i in range(6)]
    units = units_of(graph)
    assert units.repeated == ((False, *(True,) * 6) if hoisted else (False, *(True, False) * 5, True))
    numbers = [units.of[block[0]] for block in run.blocks]
    assert numbers == [units.of[block[-1]] for block in run.blocks] == sorted(numbers)
    cut, _ = cut_layers(graph, 3)
    (fewer,) = repeated_blocks(cut)
    assert (fewer.count, fewer.size) == (3, 6)


def test_one_layer_has_no_blocks():
    assert repeated_blocks(import_bytes(transformer(1))) == ()


def test_equal_types_with_other_data_flow_are_no_blocks():
    """Five equal operators each, but the second group reads its operands in another order."""
    nodes, weights = [], []
    reads = [("x", "x", "x"), ("c0", "a0", "b0"), ("b1", "c1", "a1")]
    for i, (p, q, r) in enumerate(reads):
        weights += [external(f"w{i}{k}", [4, 4]) for k in "abc"]
        nodes += [node("MatMul", f"{t} w{i}{k}", f"{k}{i}") for k, t in zip("abc", (p, q, r), strict=True)]
    nodes.append(node("Sum", "a2 b2 c2", "y"))
    assert repeated_blocks(imported(nodes, [value("x", [4, 4])], ["y"], weights)) == ()


def test_a_cut_graph_is_the_shallower_export():
    cut, _ = cut_layers(import_bytes(transformer(6)), 2)
    two = import_bytes(transformer(2))
    assert cut.digest == two.digest
    onnx.checker.check_model(to_model(cut))


def test_nothing_to_cut_changes_nothing():
    g = import_bytes(transformer(2))
    assert cut_layers(g, 2)[0] is g
    with pytest.raises(ValueError, match="at least one"):
        cut_layers(g, 0)


def test_export_round_trip_is_identity():
    g = import_bytes(transformer(2))
    assert import_bytes(to_model(g).SerializeToString()).loss == g.loss
    again = import_bytes(to_model(g).SerializeToString())
    assert [(op.type, op.inputs, op.outputs) for op in again.ops] == [(op.type, op.inputs, op.outputs) for op in g.ops]
    assert {n: t.shape for n, t in again.tensors.items()} == {n: t.shape for n, t in g.tensors.items()}


def test_any_tensor_can_be_an_output():
    g = imported([node("Relu", "x", "a"), node("Exp", "a", "y")], [value("x", [3])], ["y"])
    model = to_model(g, outputs=["a"])
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.array([-1, 0, 2], dtype=np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
    assert len(model.graph.node) == 1


def test_attributes_survive_export():
    nodes = [
        node("Conv", "x w", "c", pads=[1, 1, 1, 1], auto_pad="NOTSET"),
        node("LeakyRelu", "c", "y", alpha=1.0),
    ]
    g = imported(nodes, [value("x", [1, 3, 4, 4])], ["y"], [external("w", [2, 3, 3, 3])])
    kinds = {a.name: a.type for n in to_model(g).graph.node for a in n.attribute}
    kind = onnx.AttributeProto
    assert kinds == {"pads": kind.INTS, "auto_pad": kind.STRING, "alpha": kind.FLOAT}


def test_flops_count_multiply_adds_twice():
    g = imported([node("MatMul", "x w", "y")], [value("x", [2, 3, 4])], ["y"], [external("w", [4, 5])])
    assert flops(g, g.ops[0]) == 2 * 2 * 3 * 4 * 5
    g = imported([node("Conv", "x w", "y", group=2)], [value("x", [1, 4, 5, 5])], ["y"], [external("w", [6, 2, 3, 3])])
    assert flops(g, g.ops[0]) == 2 * 6 * 3 * 3 * (2 * 3 * 3)


def test_inspection_is_json():
    summary = inspect_graph(import_bytes(transformer(3)))
    assert json.loads(json.dumps(summary)) == summary
    assert summary["repeated_blocks"][0] | {"first": ""} == {
        "count": 3,
        "operators": 21,
        "first": "",
        "module": "layers.0",
    }
    assert summary["loss"] == "loss"
    assert summary["unresolved_shapes"] == []
    assert [i["name"] for i in summary["inputs"]] == ["ids", "attention_mask", "labels"]
    assert summary["parameters"]["tensors"] == 3 * (4 + 3) + 2
