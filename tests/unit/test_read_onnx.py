"""Multi-device annotations read back: the same layouts by tensor, a list of what cannot be expressed, no crash."""

from __future__ import annotations

import contextlib
import copy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from planner.cli.main import main
from planner.emit.names import NameRules
from planner.emit.onnx.annotate import sharding_spec
from planner.emit.onnx.placement import common_mesh, layout_of, placement_of
from planner.emit.onnx.reading import constraints_of_annotations, read_annotations
from planner.errors import InputError
from planner.frontends import load_model
from planner.ir import DeviceMesh, Graph, Layout
from planner.planning import PlanDocument, read_plan
from planner.redistribute.steps import layouts_of
from tests.unit.onnx_annotated import annotated

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def read(file: Path, model: Path, out: Path) -> int:
    arguments = ["read", str(file), "--format", "onnx", "--model", str(model), "--out", str(out)]
    return main([*arguments, "--hardware", "cpu"])


def held(plan: PlanDocument, graph: Graph) -> dict[tuple[str, str, int], tuple[object, ...]]:
    """Operator, side, place → what every rank holds, and over which ranks it is a pending sum."""
    found = {}
    for op in graph.ops:
        document = plan.operators[op.name]
        for side, names, layouts in (("in", op.inputs, document.operands), ("out", op.outputs, document.results)):
            for i, (name, layout) in enumerate(zip(names, layouts, strict=True)):
                shape = graph.tensors[name].shape if name else None
                if layout is not None and shape is not None:
                    regions = [layout.layout().region(shape, plan.mesh, r) for r in range(plan.mesh.devices)]
                    groups = plan.mesh.groups(layout.layout().partial_axes) if layout.partial else ()
                    found[op.name, side, i] = (str(regions), str(groups))
    return found


@pytest.mark.parametrize(
    ("name", "devices", "pins"),
    [
        ("mlp", 4, ("rest=data_parallel",)),
        ("mlp", 8, ("rest=zero",)),
        ("mlp", 4, ("mesh=2x2", "type=MatMul k=y")),
        (
            "gpt_tiny",
            4,
            ("mesh=2x2", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "rest=data_parallel"),
        ),
        ("gpt_tiny", 4, ("mesh=2x2", "type=LayerNormalization d0=x d2=y", "type=Softmax d3=y")),
        ("resnet18_tiny", 4, ("mesh=2x2", "layer1*conv? y0=x n=y")),
        ("moe_tiny", 4, ("mesh=2x2", "reads=*.experts.* e=x")),
    ],
)
def test_what_was_emitted_is_read_back_tensor_by_tensor(
    tmp_path: Path, name: str, devices: int, pins: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = SAMPLES / f"{name}.onnx"
    file = annotated(tmp_path, model, devices, *pins)
    capsys.readouterr()
    assert read(file, model, tmp_path / "back.json") == 0
    assert "not used" not in capsys.readouterr().out
    graph = load_model(model)
    ours, theirs = read_plan(tmp_path / "plan" / "plan.json"), read_plan(tmp_path / "back.json")
    here, there = held(ours, graph), held(theirs, graph)
    assert {k: regions for k, (regions, _) in here.items()} == {k: regions for k, (regions, _) in there.items()}
    # Whether a sum is resolved before a bias is added or behind, and whether a parameter is stored in parts, has no
    # words: the clock chose among near ties.
    assert here == there or theirs.cost.step_time_s == pytest.approx(ours.cost.step_time_s, rel=1e-3)
    assert theirs.cost.objective_s <= ours.cost.objective_s * 1.01


def test_stages_come_back_with_their_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--layers", "3", "--features", "64", "--hidden", "4096", "--classes", "32", "--batch", "64")
    model = tmp_path / "mlp.onnx"
    assert main(["build", "mlp", *sizes, "--out", str(model)]) == 0
    arguments = ["search", str(model), "--devices", "8", "--hardware", "cpu", "--no-cache", "--stages", "2"]
    pins = ("--pin", "mesh=2x2", "--pin", "type=MatMul m=x n=y")
    assert main([*arguments, "--micro-batches", "4", *pins, "--out", str(tmp_path / "plan")]) == 0
    plan = str(tmp_path / "plan" / "plan.json")
    assert main(["emit", plan, "--target", "onnx", "--model", str(model), "--out", str(tmp_path / "out")]) == 0
    arguments = ["read", str(tmp_path / "out" / "model.onnx"), "--format", "onnx", "--model", str(model)]
    back = tmp_path / "back.json"
    assert main([*arguments, "--hardware", "cpu", "--micro-batches", "4", "--out", str(back)]) == 0
    assert "not used" not in capsys.readouterr().out
    ours, theirs = read_plan(plan), read_plan(back)
    assert theirs.schedule.stages == 2
    assert theirs.mesh == ours.mesh
    graph = load_model(model, batch=ours.model.batch)
    assert held(ours, graph) == held(theirs, graph)
    reading = {op.name for op in graph.ops if any(graph.tensors[t].role == "parameter" for t in op.inputs if t)}
    assert {n: theirs.operators[n].stage for n in reading} == {n: ours.operators[n].stage for n in reading}


@cache
def _folder() -> Path:
    return Path(mkdtemp())


def products(axes: dict[str, tuple[tuple[str, ...], ...]], mesh: DeviceMesh) -> tuple[onnx.ModelProto, Graph]:
    """x·w1, relu, ·w2 with specifications of the tensors named, as somebody else may write them."""
    shapes = {"x": (8, 8), "w1": (8, 16), "w2": (16, 4), "h": (8, 16), "r": (8, 16), "y": (8, 4)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes["x"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["y"])],
        [helper.make_tensor(n, TensorProto.FLOAT, shapes[n], np.ones(shapes[n], np.float32)) for n in ("w1", "w2")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=11)
    path = _folder() / "small.onnx"
    path.write_bytes(model.SerializeToString())
    imported = load_model(path)
    model.configuration.add(name="theirs", num_devices=mesh.devices)
    for node in model.graph.node:
        told = node.device_configurations.add(configuration_id="theirs")
        for t in dict.fromkeys((*node.input, *node.output)):
            if t in axes:
                told.sharding_spec.append(sharding_spec(t, Layout(axes[t]), shapes[t], mesh))
    return model, imported


def test_what_others_say_of_some_tensors_pins_those_and_no_more() -> None:
    model, graph = products({"w1": ((), ("y",)), "x": (("x",), ())}, DeviceMesh.of(2, 2))
    found = constraints_of_annotations(model, graph, "f")
    constraints = found.constraints
    assert found.mesh == DeviceMesh.of(2, 2)
    assert not found.unused
    assert not found.stages
    (pin,) = constraints.operators
    assert pin.match == ("h",)
    assert dict(pin.strategy.factors or ()) == {"m": ("x",), "n": ("y",)}
    assert [(t.match, str(t.layout)) for t in constraints.tensors] == [(("x",), "[x,_]")]
    assert [(p.match, str(p.compute)) for p in constraints.parameters] == [(("w1",), "[_,y]")]
    only, graph = products({"w1": (("x",), ())}, DeviceMesh.of(4))
    (pin,) = constraints_of_annotations(only, graph, "f").constraints.operators
    assert pin.strategy.factors is None  # of the rows nothing is known
    assert [(a, r.factor) for a, r in pin.strategy.roles] == [("x", "k")]


def test_what_no_strategy_can_do_is_told() -> None:
    model, graph = products({"w1": (("x",), ()), "x": (("x",), ())}, DeviceMesh.of(4))
    found = constraints_of_annotations(model, graph, "f")
    assert found.constraints.operators == ()
    assert found.unused == ("h (MatMul): no strategy of its rule lies so",)
    model, graph = products({"w1": ((), ("x",)), "w2": (("x",), ())}, DeviceMesh.of(4))
    spec = model.graph.node[0].device_configurations[0].sharding_spec[0]
    spec.device[:] = [0, 1, 3, 2]
    assert "w1: devices in an order that no mesh" in constraints_of_annotations(model, graph, "f").unused[0]
    spec.device[:] = [0, 1, 2, 3]
    model.configuration[0].num_devices = 8
    assert "4 shards on 4 of 8 devices" in constraints_of_annotations(model, graph, "f").unused[0]


def test_what_cannot_be_read_at_all_is_an_error_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, graph = products({"w1": ((), ("x",))}, DeviceMesh.of(4))
    staged, broken, plain = (copy.deepcopy(model) for _ in range(3))
    staged.graph.node[2].device_configurations[0].pipeline_stage = 2
    broken.graph.node[0].device_configurations[0].configuration_id = "x"
    for node in plain.graph.node:
        del node.device_configurations[:]
    for spoilt, message in (
        (staged, "stages 0 to 1 that share 4 devices evenly, found 0, 2"),
        (broken, "'x' is not defined"),
        (plain, "none of its 3"),
    ):
        with pytest.raises(InputError, match=message):
            constraints_of_annotations(spoilt, graph, "f")
    assert read(tmp_path / "absent.onnx", SAMPLES / "mlp.onnx", tmp_path / "p.json") == 3
    assert "FILE" in capsys.readouterr().err
    (tmp_path / "text.onnx").write_text("no model", encoding="utf-8")
    assert read(tmp_path / "text.onnx", SAMPLES / "mlp.onnx", tmp_path / "p.json") == 3


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_layout_comes_back_from_its_specification(data: st.DataObject) -> None:
    mesh = DeviceMesh.of(*data.draw(st.lists(st.sampled_from((2, 3, 4)), min_size=1, max_size=3)))
    shape = (mesh.devices, 2 * mesh.devices)
    layout = data.draw(st.sampled_from([x for x in layouts_of(shape, mesh) if not x.partial]))
    placement = placement_of(sharding_spec("t", layout, shape, mesh), shape, mesh.devices)
    found = common_mesh([placement], mesh.devices)
    back = layout_of(placement, found)
    regions = [[x.region(shape, m, r) for r in range(mesh.devices)] for x, m in ((layout, mesh), (back, found))]
    assert regions[0] == regions[1]
    assert layout_of(placement, mesh) == layout


@cache
def _small() -> tuple[onnx.ModelProto, Graph]:
    every = dict.fromkeys(("x", "h", "r", "y"), (("x",), ())) | {"w1": ((), ("y",)), "w2": ((), ())}
    return products(every, DeviceMesh.of(2, 2))


NUMBERS = st.one_of(st.integers(-8, 20), st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 40]))


@given(st.data())
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_annotations_are_read_or_refused_and_never_crash(data: st.DataObject) -> None:
    model, graph = copy.deepcopy(_small()[0]), _small()[1]
    for _ in range(data.draw(st.integers(1, 4))):
        node = data.draw(st.sampled_from(list(model.graph.node)))
        (told,) = node.device_configurations[:1] or [node.device_configurations.add()]
        spec = data.draw(st.sampled_from(list(told.sharding_spec) or [told.sharding_spec.add()]))
        what = data.draw(st.integers(0, 11))
        value = data.draw(NUMBERS)
        small = max(min(value, (1 << 31) - 1), -(1 << 31))
        if what == 0:
            spec.tensor_name = data.draw(st.sampled_from(["x", "w1", "y", "", "none"]))
        elif what == 1:
            spec.device.append(value)
        elif what == 2 and spec.device:
            spec.device[data.draw(st.integers(0, len(spec.device) - 1))] = value
        elif what == 3:
            del spec.device[:]
        elif what == 4:
            spec.sharded_dim.add(axis=value).simple_sharding.add(num_shards=data.draw(NUMBERS), dim_value=8)
        elif what == 5 and spec.sharded_dim:
            spec.sharded_dim[0].axis = value
        elif what == 6 and spec.sharded_dim:
            spec.sharded_dim[0].simple_sharding.add(num_shards=value)
        elif what == 7:
            spec.index_to_device_group_map.add(key=value, value=[data.draw(NUMBERS) for _ in range(3)])
        elif what == 8:
            told.pipeline_stage = small
        elif what == 9:
            told.configuration_id = data.draw(st.sampled_from(["theirs", "", "other"]))
        elif what == 10:
            model.configuration[0].num_devices = small
        else:
            told.sharding_spec.append(spec)
    try:
        found = constraints_of_annotations(model, graph, "f")
    except InputError:
        return
    assert found.constraints.meshes == (found.mesh.shape,)


@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=200)
def test_spoilt_files_are_read_or_refused_and_never_crash(changes: list[tuple[float, int]]) -> None:
    model, graph = _small()
    content = bytearray(model.SerializeToString())
    for where, value in changes:
        content[int(where * len(content))] = value
    path = _folder() / "spoilt.onnx"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        read_annotations(path, graph, NameRules())
