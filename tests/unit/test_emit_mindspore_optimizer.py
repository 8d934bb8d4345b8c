"""Optimizer parallel, MindSpore's ZeRO: searched for, beside tensor parallelism too, written down, and read back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from operator import add
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from planner.builder import build
from planner.cost_models import load_profile
from planner.emit import NameRules
from planner.emit.mindspore import emit_mindspore
from planner.emit.mindspore.arrangement import Arrangement, arranged, common_mesh, layouts_of
from planner.emit.mindspore.optimizer import Wanted, shard_size
from planner.emit.mindspore.reading import read_strategies
from planner.emit.mindspore.strategy import strategies_of_plan, wanted_of_plan
from planner.emit.mindspore.strategy_map import ParameterLayout, StrategyMap, from_bytes, to_json, to_protobuf
from planner.emit.names import Name
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import Constraints, parse_pin
from planner.pricing import Settings
from planner.pricing.optimizer_parallel import divided_further, storable
from planner.redistribute.steps import layouts_of as even_layouts
from planner.targets import Target
from tests.unit.test_emit_mindspore import cases

SIZES = {"features": 64, "hidden": 128, "layers": 4, "classes": 32, "batch": 32}
TENSOR = ("mesh=2x4", "layers.0.matmul m=x n=y", "layers.1.matmul m=x k=y", "layers.2.matmul m=x n=y",
          "layers.3.matmul m=x k=y")  # fmt: skip


@cache
def mlp() -> Graph:
    return import_bytes(build("mlp", SIZES).SerializeToString(), name="mlp")


def graph_of(nodes: list[onnx.NodeProto], inputs: Mapping[str, list[int]], weights: Mapping[str, list[int]]) -> Graph:
    """A graph that ends in `y`."""
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    return import_bytes(model.SerializeToString(), name="g")


def planned(
    graph: Graph, *pins: str, target: Target = "mindspore", constraints: Constraints | None = None
) -> PlanDocument:
    found = [parse_pin(p) for p in pins] + ([] if constraints is None else [constraints])
    settings = Settings(training=True, target=target)
    request = Request(8, load_profile("ascend-910b"), settings, constraints=reduce(add, found) if found else None)
    return describe(make_plan(graph, request), bind={}, batch=None)


def own_names(plan: PlanDocument) -> dict[str, Name]:
    return {n: Name(n) for n in plan.parameters}


def lying(plan: PlanDocument) -> dict[str, Arrangement]:
    found = strategies_of_plan(plan, own_names(plan)).map.parameters
    return {n: p.arrangement for n, p in found.items()}


def differing(plan: PlanDocument, names: Mapping[str, Name] | None = None) -> list[str]:
    lost = emit_mindspore(plan, names or own_names(plan)).lost
    return [line for line in lost if "optimizer parallel" in line or "MindSpore keeps the part" in line]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_what_a_search_divides_further_is_what_mindspore_divides(case: tuple[DeviceMesh, Layout, Layout]) -> None:
    mesh, compute, _ = case
    stored, shape = divided_further(compute, mesh), tuple(mesh.devices for _ in compute.dims)
    wanted = Wanted.of(arranged(compute, mesh), shape, compute, stored, mesh)
    assert wanted.alike
    assert not wanted.parts
    assert wanted.ways == wanted.arrangement.replicas
    made = wanted.divided(-1)
    common = common_mesh([made])
    back = layouts_of(made, common)
    for rank in range(mesh.devices):
        regions = [x.region(shape, m, rank) for x, m in ((compute, mesh), (back[0], common))]
        assert regions[0] == regions[1]
        assert stored.region(shape, mesh, rank) == back[1].region(shape, common, rank)


@pytest.mark.parametrize("sizes", [(2,), (2, 4), (4, 2), (2, 2, 2)])
def test_parameters_may_be_stored_as_they_are_divided_further_and_no_other_way(sizes: tuple[int, ...]) -> None:
    mesh, shape = DeviceMesh.of(*sizes), (8, 12)
    every = even_layouts(shape, mesh)
    ordered = [x for x in every if not x.partial and all(list(d) == sorted(d) for d in x.dims)]
    found = storable(ordered, every, mesh)
    assert found[: len(ordered)] == tuple(ordered)
    assert len(set(found)) == len(found)
    for x in found[len(ordered) :]:
        assert any(x == divided_further(y, mesh) for y in ordered)
        x.local_shape(shape, mesh)


def test_zero_is_found_written_and_set() -> None:
    plan = planned(mlp(), "rest=zero")
    for p in plan.parameters.values():
        assert p.stored.layout().shards(plan.mesh) == 8
        assert not any(p.compute[0].dims)
    files = emit_mindspore(plan, own_names(plan)).files
    assert b'net.hsdp(shard_size=-1, threshold=0, optimizer_level="level1")' in files["parallel.py"]
    assert not differing(plan)


def test_zero_leaves_whole_what_mindspore_does() -> None:
    """Rows that 8 ranks do not divide stay whole, whatever else divides: `--pin rest=zero` was a contradiction."""
    nodes = [
        helper.make_node("Gather", ["kinds", "i"], ["k"]),
        helper.make_node("Add", ["x", "k"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 64]),
                helper.make_tensor_value_info("i", TensorProto.INT64, [16]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [
                numpy_helper.from_array(np.zeros((2, 64), np.float32), "kinds"),
                numpy_helper.from_array(np.zeros((64, 32), np.float32), "w"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    plan = planned(import_bytes(model.SerializeToString(), name="g"), "mesh=8", "rest=zero")
    assert str(plan.parameters["kinds"].stored.layout()) == "[_,_]"
    assert str(plan.parameters["w"].stored.layout()) == "[x,_]"
    files = emit_mindspore(plan, own_names(plan)).files
    made: dict[str, object] = {}
    source = files["parallel.py"].decode()
    exec(source[source.index("WHOLE =") : source.index("# Settings for")], made)
    assert made["WHOLE"] == {"kinds"}


def test_tensor_parallelism_goes_with_optimizer_parallelism() -> None:
    """The resilience tutorial's own example: model parallel 4, data parallel 2, optimizer parallel on."""
    plan = planned(mlp(), *TENSOR, *(f"layers.{i}.weight stored=[y.x,_]" for i in (1, 3)))
    assert {n: str(p.stored.layout()) for n, p in plan.parameters.items() if n.endswith("1.weight")} == {
        "layers.1.weight": "[y.x,_]"
    }
    steps = {s.kind for r in plan.redistributions if r.tensor in plan.parameters for s in r.steps}
    assert "permute" not in steps
    found = lying(plan)
    assert found["layers.1.weight"] == Arrangement((2, 4), (0, -1), 4, 2)
    assert not differing(plan)


def test_what_is_searched_for_mindspore_is_what_it_lays_out() -> None:
    for pins in ((), ("rest=zero",), TENSOR, (*TENSOR, "rest=zero"), ("mesh=2x2x2", "rest=zero")):
        plan = planned(mlp(), *pins)
        assert not differing(plan), pins
        wanted = wanted_of_plan(plan, own_names(plan))
        assert shard_size(wanted.values()) in (0, -1)


@pytest.mark.parametrize("form", ["ckpt", "json"])
@pytest.mark.parametrize("pins", [("rest=zero",), (*TENSOR, "rest=zero"), (*TENSOR, "layers.1.weight stored=[y.x,_]")])
def test_files_are_read_back_as_they_were_planned(tmp_path: Path, pins: tuple[str, ...], form: str) -> None:
    plan = planned(mlp(), *pins)
    path = tmp_path / f"strategy.{form}"
    path.write_bytes(emit_mindspore(plan, own_names(plan)).files[path.name])
    reading = read_strategies(path, mlp(), NameRules())
    assert reading.target == "mindspore"
    again = planned(mlp(), target=reading.target, constraints=reading.constraints)
    assert lying(again) == lying(plan)


def test_a_file_that_mindspore_saved_for_the_tutorials_example_is_read(tmp_path: Path) -> None:
    """-1 shards are all ranks with equal parts, as the front end writes them."""
    matrix, vector = (2, 4), (-1,)
    layouts = {f"layers.{i}.weight": ParameterLayout(Arrangement(matrix, (0, -1), 4, -1)) for i in range(4)}
    layouts |= {f"layers.{i}.bias": ParameterLayout(Arrangement(matrix, vector, 1, -1)) for i in range(4)}
    for to, name in ((to_protobuf, "strategy.ckpt"), (to_json, "strategy.json")):
        path = tmp_path / name
        path.write_bytes(to(StrategyMap({}, layouts)))
        reading = read_strategies(path, mlp(), NameRules())
        plan = planned(mlp(), target=reading.target, constraints=reading.constraints)
        assert {str(p.stored.layout()) for p in plan.parameters.values()} == {"[y.x,_]", "[x.y]"}
        assert {str(p.compute[0].layout()) for p in plan.parameters.values()} == {"[y,_]", "[_]"}
        assert set(lying(plan).values()) == {Arrangement((2, 4), (0, -1), 4, 2), Arrangement((2, 4), (-1,), 1, 8)}


def test_a_matrix_that_the_network_holds_the_other_way_round_is_read_with_its_shards(tmp_path: Path) -> None:
    plan = planned(mlp(), "rest=zero")
    turned = {n: Name(n, transposed=len(p.shape) == 2) for n, p in plan.parameters.items()}
    emission = emit_mindspore(plan, turned)
    assert any("which part of 4 parameters" in line for line in emission.lost)
    found = from_bytes(emission.files["strategy.json"], "x").parameters["layers.0.weight"]
    assert found.shape == (16, 64)  # of 128 x 64
    path = tmp_path / "strategy.json"
    path.write_bytes(emission.files["strategy.json"])
    reading = read_strategies(path, mlp(), NameRules(parameters=turned))
    assert any("which part of layers.0.weight" in line for line in reading.unused)
    again = planned(mlp(), target=reading.target, constraints=reading.constraints)
    assert lying(again) == lying(plan)


def test_a_plan_for_any_target_is_written_as_mindspore_divides_it() -> None:
    """Other parts than the plan's, as many of them; what differs is told."""
    columns = planned(mlp(), "mesh=8", *(f"layers.{i}.weight stored=[_,x]" for i in range(4)), target="any")
    assert {a.optimizer_shards for n, a in lying(columns).items() if n.endswith("weight")} == {8}
    (line,) = differing(columns)
    assert line.startswith("which part of 4 parameters (layers.0.weight, ")
    pins = (*TENSOR, "layers.1.weight stored=[x.y,_]")
    mesh_order = planned(mlp(), *pins, target="any")
    assert lying(mesh_order)["layers.1.weight"] == Arrangement((2, 4), (0, -1), 4, 2)


def test_parameters_in_groups_of_several_sizes_are_divided_among_all_ranks() -> None:
    pins = ("mesh=2x4", "rest=data_parallel", "layers.0.weight stored=[y,_]", "layers.1.weight stored=[x.y,_]")
    plan = planned(mlp(), *pins, target="any")
    found = lying(plan)
    assert found["layers.0.weight"].optimizer_shards == found["layers.1.weight"].optimizer_shards == 8
    assert any(line.startswith("among how many ranks 1 parameters (layers.0.weight)") for line in differing(plan))


def test_what_does_not_divide_stays_whole_and_says_how_much_it_takes() -> None:
    weights = {"w": [3, 64]}
    plan = planned(
        graph_of([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [16, 3]}, weights),
        "mesh=8", "y m=x", "w stored=[_,x]", target="any",
    )  # fmt: skip
    assert lying(plan)["w"].optimizer_shards == 0
    (line,) = differing(plan)
    assert "1 parameters (w), which stay whole" in line
    assert f"{3 * 64 * 16 * 7 // 8:,} bytes" in line


def test_one_size_of_groups_is_kept() -> None:
    plan = planned(mlp(), "mesh=2x4", "rest=data_parallel", *(f"layers.{i}.weight stored=[y,_]" for i in range(4)),
                   target="any")  # fmt: skip
    found = {a for n, a in lying(plan).items() if n.endswith("weight")}
    assert found == {Arrangement((2, 4), (-1, -1), 1, 4)}
    assert b"hsdp(shard_size=4" in emit_mindspore(plan, own_names(plan)).files["parallel.py"]
    assert not differing(plan)


@pytest.mark.parametrize("target", ["any", "mindspore"])
def test_a_product_split_by_rows_with_a_bias_is_written(tmp_path: Path, target: Target) -> None:
    """Its bias joins a pending sum on one rank alone; MindSpore adds it behind the sum on every rank."""
    weights = {"w": [64, 32], "b": [32]}
    graph = graph_of([helper.make_node("Gemm", ["x", "w", "b"], ["y"])], {"x": [16, 64]}, weights)
    plan = planned(graph, "mesh=2x4", "y m=x k=y", target=target)
    assert {str(x.layout()) for x in plan.parameters["b"].compute} == {"[_]+y"}
    found = strategies_of_plan(plan, own_names(plan)).map
    assert found.operators["MatMul_w"].operands == ((2, 4), (4, 1))
    assert found.operators["BiasAdd_b"].operands == ((2, 1), (1,))
    assert found.parameters["b"].arrangement.tensor_map == (-1,)
    path = tmp_path / "strategy.json"
    path.write_bytes(emit_mindspore(plan, own_names(plan)).files[path.name])
    reading = read_strategies(path, graph, NameRules())
    again = planned(graph, target=reading.target, constraints=reading.constraints)
    assert lying(again) == lying(plan)


@pytest.mark.parametrize(("zero", "level"), [(None, 1), (1, 1), (2, 2), (3, 3)])
def test_the_level_is_that_of_zero(zero: int | None, level: int) -> None:
    plan = planned(mlp(), "rest=zero")
    run = {} if zero is None else {"zero": zero}
    plan = plan.model_copy(update={"schedule": plan.schedule.model_copy(update={"run": run})})
    text = emit_mindspore(plan, own_names(plan)).files["parallel.py"].decode()
    assert f'optimizer_level="level{level}"' in text
    assert (f"'optimizer_level': 'level{level}'" in text) == (level > 1)  # of CONTEXT


def test_the_step_of_a_file_is_that_of_mindspore_or_of_the_innermost_axis() -> None:
    """With axes between those of equal parts, MindSpore writes the mean of the steps: 3 here, where neighbours on the
    innermost axis are 2 apart."""
    from planner.emit.mindspore.arrangement import Arrangement, common_mesh, layouts_of
    from planner.errors import InputError

    plain = Arrangement((2, 2, 2, 2), (0, 2))
    assert plain.divided(2).optimizer_step == 3
    found = []
    for step in (0, 2, 3):
        a = Arrangement(plain.device_matrix, plain.tensor_map, step, 2)
        found.append(layouts_of(a, common_mesh([a])))
    assert found[0] == found[1] == found[2]
    wrong = Arrangement(plain.device_matrix, plain.tensor_map, 5, 2)
    with pytest.raises(InputError, match="5 ranks apart"):
        layouts_of(wrong, common_mesh([wrong]))
