"""Dimensions that are split in each of their equal parts: queries, keys and values of one product by heads."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.cost_models import load_profile
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph, Layout, Role
from planner.kernels import run_local
from planner.kernels.shards import assemble, shard
from planner.planning import PlanDocument, Request, make_plan, read_plan
from planner.planning.constraints.notation import parse_layout
from planner.planning.document import LayoutDocument
from planner.planning.roles import role_from_text, role_to_text
from planner.pricing import Settings
from planner.rules.bound import bind_rules
from planner.verify.data import random_tensors
from tests.rules.prover import Case, prove
from tests.unit.fused_models import FUSED, fused_model
from tests.unit.rank_graphs import run_ranks, run_whole

MESHES = (DeviceMesh.of(2), DeviceMesh.of(4), DeviceMesh.of(2, 2))


def fused(name: str, batch: int = 2, sequence: int = 8, hidden: int = 16) -> Graph:
    return import_bytes(fused_model(name, batch, sequence, hidden), name=name)


def split_as_one(graph: Graph) -> Graph:
    return dataclasses.replace(graph, tensors={n: dataclasses.replace(t, parts=()) for n, t in graph.tensors.items()})


@pytest.mark.parametrize(
    ("name", "weights", "count"),
    [
        ("split_product", {"w1": (1, 3), "w2": (3,)}, 3),
        ("indexed_product", {"w0": (3, 1), "w1": (3,)}, 3),
        ("unflattened_product", {"w0": (1, 3), "w1": (3,)}, 3),
        ("gated", {"w0": (1, 2)}, 2),
    ],
)
def test_a_weight_that_makes_several_things_is_marked(
    name: str, weights: dict[str, tuple[int, ...]], count: int
) -> None:
    graph = fused(name)
    assert {t.name: t.parts for t in graph.parameters if t.parts} == weights
    between = [t for t in graph.tensors.values() if t.parts and t.role is Role.ACTIVATION]
    assert between
    assert {max(t.parts) for t in between} == {count}


def test_what_no_weight_makes_is_not_marked() -> None:
    """Interleaved by heads, as Megatron keeps it: a split of the heads gives each rank its queries, keys and values."""
    graph = load_model(Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx")
    assert not any(t.parts for t in graph.tensors.values())


@pytest.mark.parametrize("name", FUSED)
def test_every_strategy_in_parts_is_right(name: str) -> None:
    graph = fused(name)
    rules, _ = bind_rules(graph)
    values = {n: np.asarray(t.value) for n, t in graph.tensors.items() if t.value is not None}
    values |= random_tensors(graph, 0)
    in_parts = 0
    for op in graph.ops:
        operands = tuple(values[t] if t else None for t in op.inputs)
        results = tuple(run_local(op, operands))
        values |= {t: y for t, y in zip(op.outputs, results, strict=True) if t and y is not None}
        if rules[op.name].parts:
            in_parts += 1
            forward, _, wrong = prove(Case(op.name, op, graph, operands, results), MESHES)
            assert forward > 0
            assert not wrong, "\n".join(map(str, wrong[:5]))
    assert in_parts >= 2


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("devices", [2, 4])
def test_splitting_in_parts_saves_what_taking_apart_would_move(name: str, devices: int) -> None:
    """Of a batch of one sample, that no axis can split."""
    graph = fused(name, batch=1, sequence=2048, hidden=1024)
    request = Request(devices, load_profile("a100-80"), Settings(training=True), meshes=(DeviceMesh.of(devices),))
    found, plain = make_plan(graph, request), make_plan(split_as_one(graph), request)
    assert found.objective_s < 0.95 * plain.objective_s
    assert any(x.parts for x in found.assignment.stored.values())
    assert not [
        m for f in found.assignment.redistributions.values() for m in f.moves if m.source.parts or m.target.parts
    ]


@pytest.mark.parametrize("target", ["dtensor", "mindspore"])
def test_targets_without_words_for_it_get_none(target: str) -> None:
    settings = Settings(training=True, target=target)  # type: ignore[arg-type]
    request = Request(2, load_profile("a100-80"), settings, meshes=(DeviceMesh.of(2),))
    found = make_plan(fused("split_product", batch=1, sequence=2048, hidden=1024), request)
    assert not any(x.parts for x in found.assignment.stored.values())


PINNED = {
    "split_product": ("w1", "[_, x:3]"),
    "indexed_product": ("w0", "[x:3, _]"),
    "unflattened_product": ("w0", "[_, x:3]"),
    "gated": ("w0", "[_, x:2]"),
}


def planned(name: str, folder: Path, devices: int = 2) -> tuple[Path, Path]:
    """The model and a plan whose weight is pinned to be split in parts."""
    model, constraints = folder / f"{name}.onnx", folder / "pins.json"
    model.write_bytes(fused_model(name))
    weight, layout = PINNED[name]
    pin = {"match": weight, "stored": layout, "compute": layout}
    constraints.write_text(json.dumps({"schema": "planner.constraints/1", "mesh": str(devices), "parameters": [pin]}))
    options = ["--devices", str(devices), "--no-cache", "--constraints", str(constraints)]
    assert main(["search", str(model), "--out", str(folder / "plan"), *options]) == 0
    return model, folder / "plan" / "plan.json"


@pytest.mark.parametrize("name", FUSED)
def test_a_plan_in_parts_is_proved_and_runs_rank_by_rank(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, plan = planned(name, tmp_path)
    assert read_plan(plan).parameters[PINNED[name][0]].stored.parts
    capsys.readouterr()
    assert main(["verify", str(plan), str(model)]) == 0
    assert capsys.readouterr().out.startswith("ok: forward and gradients")
    out = tmp_path / "ranks"
    assert main(["emit", str(plan), "--target", "onnx-ranks", "--model", str(model), "--out", str(out)]) == 0
    values = {n: v for n, v in random_tensors(load_model(model), 0).items() if n in ("x", "labels")}
    wanted, found = run_whole(model, values), run_ranks(out, values)
    for n, y in wanted.items():
        np.testing.assert_allclose(found[n], y, rtol=2e-5)


def test_a_plan_that_forgets_the_parts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, plan = planned("split_product", tmp_path)
    document = json.loads(plan.read_text())
    del document["parameters"]["w1"]["stored"]["parts"]
    plan.write_text(json.dumps(document))
    assert main(["verify", str(plan), str(model)]) != 0
    assert "w1" in "".join(capsys.readouterr())


def test_a_target_without_words_refuses_and_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, plan = planned("split_product", tmp_path)
    assert main(["emit", str(plan), "--target", "dtensor", "--out", str(tmp_path / "out")]) == 3
    said = capsys.readouterr().err
    assert "w1 lies as [_,x:3]" in said
    assert "--target dtensor" in said


def test_text_and_document_say_the_parts() -> None:
    layout = Layout((("x",), ("y", "z")), (), (1, 3))
    assert str(layout) == "[x,y.z:3]"
    pin = parse_layout("[x, y.z:3]")
    assert pin.admits(layout, DeviceMesh.of(2, 2, 2))
    assert not pin.admits(Layout(layout.dims), DeviceMesh.of(2, 2, 2))
    document = LayoutDocument.model_validate(layout.to_json("m0"))
    assert document.layout() == layout
    assert "parts" not in LayoutDocument.model_validate(Layout(layout.dims).to_json("m0")).model_dump()
    assert role_to_text(role_from_text("split:n:3")) == "split:n:3"


@pytest.mark.parametrize("text", ["[x:1]", "[_:3]", "[x:a]", "[x:]", "[:3]", "[x:-3]"])
def test_parts_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"equal parts|mesh axis"):
        parse_layout(text)


@pytest.mark.parametrize("text", ["split:n:1", "split:n:x", "split::3"])
def test_roles_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected split"):
        role_from_text(text)


def test_shards_in_parts_are_those_of_each_part() -> None:
    mesh, whole = DeviceMesh.of(2), np.arange(12)
    layout = Layout((("x",),), (), (3,))
    first, second = shard(whole, layout, mesh)
    assert first.tolist() == [0, 1, 4, 5, 8, 9]
    assert second.tolist() == [2, 3, 6, 7, 10, 11]
    np.testing.assert_array_equal(assemble((first, second), layout, (12,), mesh), whole)
    assert layout.shard(whole, mesh, 1).tolist() == second.tolist()


def test_an_uneven_part_is_no_layout() -> None:
    with pytest.raises(ValueError, match="does not divide"):
        Layout((("x",),), (), (3,)).local_shape((6,), DeviceMesh.of(4))


def test_plan_documents_without_parts_are_as_they_were(tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx"
    assert main(["search", str(sample), "--devices", "2", "--no-cache", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "plan.json").read_text()
    assert '"parts"' not in text
    assert isinstance(PlanDocument.model_validate_json(text), PlanDocument)


def test_an_operator_without_its_first_result_is_imported() -> None:
    """A GRU of which only the last state is read leaves its first output out."""
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("GRU", ["x", "w", "r"], ["", "last"], hidden_size=4)],
        "g",
        [tensor("x", TensorProto.FLOAT, [3, 2, 6])],
        [tensor("last", TensorProto.FLOAT, [1, 2, 4])],
        [
            numpy_helper.from_array(np.zeros((1, 12, 6), np.float32), "w"),
            numpy_helper.from_array(np.zeros((1, 12, 4), np.float32), "r"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    assert import_bytes(model.SerializeToString()).outputs == ("last",)
