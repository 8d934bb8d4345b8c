"""The import proved: the graph as understood against ONNX Runtime on the file, and what would be noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from planner.frontends import import_bytes
from planner.ir import Graph, Op
from planner.verify.agreement import error_of
from planner.verify.imported import check_import

from .frontends_models import BOOL, FLOAT, INT64, constant, external, node, serialised, transformer, value

SAMPLES = sorted((Path(__file__).parents[2] / "sample_graphs").glob("*tiny*.onnx"))
LARGE = 300  # more floats than the importer reads


def verdict(data, graph=None, **sizes):
    graph = import_bytes(data, name="test", **sizes) if graph is None else graph
    return check_import(data, graph, **sizes)


def proved(data, **sizes):
    found = verdict(data, **sizes)
    assert found.ok is True, found.reason
    assert not found.reason
    return found


def mutated(graph: Graph, name: str, **changes) -> Graph:
    """The graph with other fields of the operator of that name."""
    return replace(graph, ops=tuple(replace(op, **changes) if op.name == name else op for op in graph.ops))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.stem)
def test_sample_graphs(path):
    assert proved(path.read_bytes()).max_error < 1e-4


def test_a_telemetry_of_onnx_runtime_is_off_in_every_process():
    code = "import planner.verify.imported, planner.verify.reference, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    clean = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    found = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


# What the import changes


def mixed() -> bytes:
    """A function body, folded shapes, an un-merged bias, a fill in place of a weight, an Identity of a source."""
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Sub", ["s", "b"], ["c"])]
    f = helper.make_function("local", "f", ["a", "b"], ["c"], body, [helper.make_opsetid("", 20)])
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n0", axis=0),
        node("Unsqueeze", "n0 axes", "n1"),
        node("Concat", "n1 rest", "target", axis=0),
        node("MatMul", "x wa", "a0", module="m.a"),
        node("Add", "a0 m.a.bias", "a", module="m.a"),
        node("ConstantOfShape", "filled_shape", "filled", value=constant("v", [0.0], "float32")),
        node("MatMul", "a filled", "b0", module="m.b"),
        node("Add", "b0 m.a.bias", "b", module="m.b"),
        node("Identity", "wa", "wt"),
        node("MatMul", "b wt", "c"),
        node("f", "c a", "d", domain="local"),
        node("Add", "d large", "e"),
        node("Reshape", "e target", "y"),
    ]
    stored = [
        external("wa", [LARGE, LARGE]),
        constant("m.a.bias", np.full(LARGE, 0.25), "float32"),
        constant("large", np.linspace(-1, 1, LARGE), "float32"),
        constant("filled_shape", [LARGE, LARGE]),
        constant("zero", 0),
        constant("axes", [0]),
        constant("rest", [-1, 3]),
    ]
    return serialised(
        nodes, [value("x", ["n", LARGE])], [value("y", None)], stored, domains={"local": 1}, functions=[f]
    )


def test_everything_that_the_import_changes_is_compared():
    g = import_bytes(mixed(), bind={"n": 4})
    assert g.origins == {"m.b.bias": "m.a.bias"}
    assert "filled" not in g.producers
    assert proved(mixed(), bind={"n": 4}).compared == ("y",)


def test_sequences_and_casts_to_the_type_of_another():
    nodes = [
        node("SplitToSequence", "x sizes", "s", axis=1),
        node("SequenceAt", "s last", "a"),
        node("SequenceAt", "s zero", "b0"),
        node("CastLike", "b0 eight", "b"),
        node("SplitToSequence", "x", "rows", axis=0, keepdims=0),
        node("SequenceAt", "rows one", "r"),
        node("ConcatFromSequence", "rows", "stack", axis=1, new_axis=1),
        node("SequenceConstruct", "a r", "two"),
        node("SequenceAt", "two one", "r2"),
        node("SequenceLength", "two", "length"),
        node("Add", "r r2", "z0"),
        node("Cast", "length", "length_f", to=FLOAT),
        node("Mul", "z0 length_f", "z"),
    ]
    stored = [constant("sizes", [1, 3]), constant("last", -1), constant("zero", 0), constant("one", 1)]
    stored += [constant("eight", [1, 2], "float64")]
    data = serialised(nodes, [value("x", [2, 4])], ["a", "b", "z", "stack"], stored)
    g = import_bytes(data)
    kinds = {op.type for op in g.ops}
    assert not any("Sequence" in k or k == "CastLike" for k in kinds), kinds
    assert g.tensors["a"].shape == (2, 3)
    # The checker of onnx wants the types of outputs.
    model = onnx.ModelProto.FromString(data)
    types = {"a": (FLOAT, 2), "b": (onnx.TensorProto.DOUBLE, 2), "z": (FLOAT, 1), "stack": (FLOAT, 2)}
    for o in model.graph.output:
        o.CopyFrom(value(o.name, [None] * types[o.name][1], types[o.name][0]))
    assert set(proved(model.SerializeToString()).compared) == {"a", "b", "z", "stack"}


@pytest.mark.parametrize("element", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN], ids=["bf16", "fp8"])
def test_types_that_numpy_has_not_are_no_obstacle(element):
    """ONNX Runtime computes with them, and fails to hand them back, or hands back bytes."""
    nodes = [
        node("MatMul", "x w", "h"), node("CastLike", "h like", "short"), node("CastLike", "short x", "long"),
        node("Add", "long h", "y"),
    ]  # fmt: skip
    stored = [constant("w", np.eye(4), "float32"), helper.make_tensor("like", element, [1], [1.0])]
    assert proved(serialised(nodes, [value("x", [3, 4])], [value("y", [3, 4])], stored)).compared == ("y",)


def test_unbind_as_torchscript_exports_it():
    """With a size of 1 and keepdims=0: ONNX Runtime drops the dimension, though the standard ignores the attribute."""
    nodes = [
        node("Constant", "", "one", value=constant("", 1)),
        node("SplitToSequence", "x one", "s", axis=1, keepdims=0),
        node("SequenceAt", "s one", "a"),
        node("ConcatFromSequence", "s", "stack", axis=0, new_axis=1),
        node("SplitToSequence", "x two", "halves", axis=1, keepdims=0),
        node("SequenceAt", "halves one", "b"),
    ]
    graph = import_bytes(serialised(nodes, [value("x", [2, 4])], ["a", "stack", "b"], [constant("two", 2)]))
    assert [graph.tensors[n].shape for n in ("a", "stack", "b")] == [(2,), (4, 2), (2, 2)]
    data = serialised(nodes[:4], [value("x", [2, 4])], [value("a", [None]), value("stack", [None, None])])
    assert set(proved(data).compared) == {"a", "stack"}


def test_sequences_that_grow_and_shrink_are_known():
    nodes = [
        node("SequenceEmpty", "", "none"),
        node("SequenceInsert", "none x", "first"),
        node("Neg", "x", "n"),
        node("SequenceInsert", "first n zero", "second"),
        node("Identity", "second", "same"),
        node("SequenceInsert", "same x last", "third"),
        node("SequenceErase", "third zero", "fourth"),
        node("SequenceErase", "third", "fifth"),
        node("ConcatFromSequence", "fourth", "y", axis=1),
        node("SequenceAt", "fifth last", "z"),
    ]
    stored = [constant("zero", 0), constant("last", -1)]
    outputs = [value("y", [2, None]), value("z", [2, 3])]
    data = serialised(nodes, [value("x", [2, 3])], outputs, stored)
    assert not any("Sequence" in op.type for op in import_bytes(data).ops)
    assert set(proved(data).compared) == {"y", "z"}


def test_a_sequence_that_is_returned_stays_one():
    nodes = [node("SplitToSequence", "x two", "s", axis=1), node("SequenceAt", "s one", "y")]
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    data = serialised(
        nodes, [value("x", [4, 4])], [sequence, value("y", None)], [constant("two", 2), constant("one", 1)]
    )
    assert "SplitToSequence" in {op.type for op in import_bytes(data).ops}


def test_a_carried_batch_is_sliced():
    data = transformer(2)
    for batch in (1, 3, 4, 6):
        found = verdict(data, batch=batch)
        assert found.ok is True, found.reason
        assert "logits" in found.compared
        assert ("loss" in found.compared) == (batch != 3)  # of three in slices of two one sample counts twice


def test_samples_and_words_in_one_dimension_are_no_contradiction():
    """Labels of all words of all samples: the file cannot be run on a slice of them."""
    nodes = [node("Reshape", "x flat", "rows"), node("Mul", "rows labels", "y")]
    inputs = [value("x", [2, 3, 5]), value("labels", [6, 1])]
    data = serialised(nodes, inputs, [value("y", [6, 5])], [constant("flat", [6, 5])])
    assert import_bytes(data, batch=4).tensors["labels"].shape == (12, 1)
    found = verdict(data, batch=4)
    assert found.ok is None
    assert "dimension 0 of input labels holds samples and words together: 6 in the file, 12 here" in found.reason
    assert verdict(data).ok is True
    grown = import_bytes(data, batch=4)
    tables = {**grown.tensors, "labels": replace(grown.tensors["labels"], shape=(14, 1))}
    assert verdict(data, replace(grown, tensors=tables), batch=4).ok is False


def test_a_carried_batch_that_is_carried_wrongly():
    nodes = [node("Gather", "x rows", "a", axis=0), node("Add", "x a", "y")]
    data = serialised(nodes, [value("x", [2, 3])], [value("y", [2, 3])], [constant("rows", [0, 1])])
    g = import_bytes(data, batch=4)
    assert proved(data, batch=4).compared == ("y",)
    tables = dict(g.tensors)
    name = g.op("a").inputs[1]
    assert tables[name].value.tolist() == [0, 1, 2, 3]
    tables[name] = replace(tables[name], value=np.array([0, 1, 0, 1]))
    assert verdict(data, replace(g, tensors=tables), batch=4).ok is False


# What would be noticed


def attention() -> bytes:
    data = transformer(1)
    assert proved(data)
    return data


@pytest.mark.parametrize("fault", ["swap", "attribute", "drop", "tie", "untie", "constant", "value", "output", "size"])
def test_faults_of_the_import_are_noticed(fault):
    data = mixed()
    g = import_bytes(data, bind={"n": 4})
    tensors = dict(g.tensors)
    sizes = {"n": 4}
    sub = next(op for op in g.ops if op.type == "Sub")
    if fault == "swap":
        g = mutated(g, sub.name, inputs=sub.inputs[::-1])
    elif fault == "attribute":
        data = attention()
        g, sizes = import_bytes(data), {}
        g = mutated(g, "s_0", attributes={"axis": 2})
    elif fault == "drop":
        dropped = g.op("e")
        ops = tuple(op for op in g.ops if op is not dropped)
        g = replace(g, ops=ops)
        g = mutated(g, "y", inputs=("d", *g.op("y").inputs[1:]))
    elif fault == "tie":
        g = mutated(g, "b0", inputs=("a", "wa"))
    elif fault == "untie":
        tensors["other"] = replace(tensors["wa"], name="other")
        g = mutated(replace(g, tensors=tensors), "c", inputs=("b", "other"))
    elif fault == "constant":
        tensors["filled"] = replace(tensors["filled"], value=np.zeros((LARGE, LARGE), np.float32))
        tensors["wa"] = replace(tensors["wa"], value=np.eye(LARGE, dtype=np.float32))
        g = replace(g, tensors=tensors)
    elif fault == "value":
        tensors["target"] = replace(tensors["target"], value=np.array([2, -1, 3]))
        g = replace(g, tensors=tensors)
    elif fault == "output":
        g = replace(g, outputs=("e",))
    else:
        sizes = {"n": 5}
    found = check_import(data, g, bind=sizes)
    assert found.ok is False, found
    assert found.reason


def test_a_merged_bias_with_a_wrong_origin_is_noticed():
    g = import_bytes(mixed(), bind={"n": 4})
    wrong = replace(g, origins={"m.b.bias": "large"})
    assert check_import(mixed(), wrong, bind={"n": 4}).ok is False


# No verdict


def test_what_onnx_runtime_cannot_run_has_no_verdict():
    data = serialised(
        [node("Mystery", "x", "y", domain="custom")], [value("x", [2])], [value("y", [2])], domains={"custom": 1}
    )
    found = verdict(data)
    assert found.ok is None
    assert "ONNX Runtime cannot run the file" in found.reason


def test_what_is_too_large_has_no_verdict():
    data = transformer(1)
    found = check_import(data, import_bytes(data), budget=1000)
    assert found.ok is None
    assert "GiB" in found.reason


def test_where_memory_is_short_the_outputs_alone_are_compared():
    nodes = [node("MatMul", f"h{k} w", f"h{k + 1}") for k in range(20)]
    data = serialised(nodes, [value("h0", [64, 8])], [value("h20", [64, 8])], [external("w", [8, 8])])
    g = import_bytes(data)
    whole = check_import(data, g)
    short = check_import(data, g, budget=20_000)
    assert (whole.ok, whole.tensors) == (True, 20)
    assert (short.ok, short.tensors) == (True, 1), short.reason


@pytest.mark.parametrize("seed", [5, 6, 24])
def test_where_random_weights_let_nothing_through_they_are_fitted(seed):
    """Layers of two channels: where both are negative Relu cuts all of the signal off."""
    nodes, weights = [], []
    for k in range(30):
        nodes += [
            node("MatMul", f"h{k} w{k}", f"p{k}"),
            node("Add", f"p{k} b{k}", f"a{k}"),
            node("Relu", f"a{k}", f"h{k + 1}"),
        ]
        weights += [external(f"w{k}", [2, 2]), external(f"b{k}", [2])]
    data = serialised(nodes, [value("h0", [2, 2])], [value("h30", [2, 2])], weights)
    g = import_bytes(data)
    assert check_import(data, g, seed=seed).ok is True
    assert check_import(data, mutated(g, "a29", type="Sub"), seed=seed).ok is False


def test_what_does_not_respond_or_is_not_finite_has_no_verdict():
    nodes = [node("Mul", "x zero", "y"), node("Div", "x zero", "z")]
    data = serialised(nodes, [value("x", [4])], [value("y", [4]), value("z", [4])], [constant("zero", 0.0, "float32")])
    found = verdict(data)
    assert found.ok is None
    assert "y does not respond" in found.reason
    assert "z has no finite value" in found.reason


def test_a_mask_value_swamps_no_error():
    reference = np.array([1.0, 2.0, -3.4e38, 4.0, -np.inf, np.nan], np.float32)
    found = reference.copy()
    assert error_of(found, reference) == 0
    found[0] += 0.01
    assert 1e-3 < error_of(found, reference) < 1e-2
    found[5] = 0
    assert error_of(found, reference) == float("inf")
    infinite = reference.copy()
    infinite[4] = np.inf
    assert error_of(infinite, reference) == float("inf")


def test_control_flow_keeps_its_weights():
    def branch(name, kind, weight):
        out = value(f"{name}_out", [2, 4])
        return helper.make_graph(
            [helper.make_node(kind, ["x", weight], [out.name])], name, [], [out], [external(weight, [4, 4])]
        )

    nodes = [node("If", "c", "y", then_branch=branch("t", "MatMul", "wt"), else_branch=branch("e", "MatMul", "we"))]
    data = serialised(nodes, [value("x", [2, 4]), value("c", [], BOOL)], [value("y", [2, 4])])
    g = import_bytes(data)
    assert {t.name for t in g.parameters} == {"wt", "we"}
    found = verdict(data, g)
    assert found.ok is not False, found.reason  # None while no kernel of ours runs control flow


def test_integers_are_compared_by_element():
    nodes = [node("ArgMax", "x", "y", axis=1), node("Cast", "x", "z", to=INT64)]
    data = serialised(nodes, [value("x", [64, 16])], [value("y", [64, 1], INT64), value("z", [64, 16], INT64)])
    proved(data)
    g = import_bytes(data)
    assert check_import(data, mutated(g, "y", attributes={"axis": 1, "select_last_index": 0, "keepdims": 1})).ok is True
    lowest = tuple(
        Op("y", "ArgMin", op.inputs, op.outputs, op.attributes, 20) if op.name == "y" else op for op in g.ops
    )
    assert check_import(data, replace(g, ops=lowest)).ok is False


def test_what_is_drawn_at_random_has_no_verdict():
    nodes = [
        node("Dropout", "x half yes", "d", seed=3),
        node("RandomNormalLike", "x", "r", seed=4.0),
        node("Add", "d r", "y"),
    ]
    stored = [constant("half", 0.5, "float32"), constant("yes", True, "bool")]
    data = serialised(nodes, [value("x", [64])], [value("y", [64])], stored)
    found = verdict(data)
    assert found.ok is None
    assert "Dropout d draws at random" in found.reason
    assert "RandomNormalLike r draws at random" in found.reason
