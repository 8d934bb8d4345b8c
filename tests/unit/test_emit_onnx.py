"""Multi-device annotations: they say what the plan says, ONNX takes them, and nonsense is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.emit.onnx.annotate import CONFIGURATION
from planner.emit.onnx.check import annotation_problems
from planner.frontends import load_model
from planner.planning import read_plan
from tests.unit.onnx_annotated import annotated

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def held(spec: onnx.ShardingSpecProto, shape: tuple[int, ...]) -> dict[int, tuple[tuple[int, int], ...]]:
    """Device → what it holds of the tensor, as the proposal's loops over the divided axes give it."""
    groups = {e.key: list(e.value) for e in spec.index_to_device_group_map}
    regions = [[(0, n)] for n in shape]
    for dim in spec.sharded_dim:
        (part,) = dim.simple_sharding
        width = shape[dim.axis] // part.num_shards
        regions[dim.axis] = [(i * width, (i + 1) * width) for i in range(part.num_shards)]
    shards: list[tuple[tuple[int, int], ...]] = [()]
    for options in regions:
        shards = [(*s, o) for s in shards for o in options]
    assert len(shards) == len(spec.device)
    return {d: s for key, s in zip(spec.device, shards, strict=True) for d in (groups[key] if key < 0 else [key])}


@pytest.mark.parametrize(
    ("name", "pins"),
    [
        ("mlp", ("mesh=2x2", "type=MatMul m=x n=y", "rest=data_parallel")),
        ("gpt_tiny", ("mesh=2x2", "*.c_attn.matmul b0=y n=x", "rest=data_parallel")),
        ("resnet18_tiny", ("rest=data_parallel",)),
        ("moe_tiny", ()),
    ],
)
def test_every_tensor_of_every_node_lies_as_the_plan_says(tmp_path: Path, name: str, pins: tuple[str, ...]) -> None:
    path = annotated(tmp_path, SAMPLES / f"{name}.onnx", 4, *pins)
    model = onnx.load(str(path), load_external_data=False)
    assert annotation_problems(model) == []
    plan, graph = read_plan(tmp_path / "plan" / "plan.json"), load_model(SAMPLES / f"{name}.onnx")
    specs = 0
    for node in model.graph.node:
        for told in node.device_configurations:
            assert told.configuration_id == CONFIGURATION
            op = graph.producers[next(o for o in node.output if o)]
            document = plan.operators[op.name]
            layouts = dict(zip((*op.inputs, *op.outputs), (*document.operands, *document.results), strict=False))
            for spec in told.sharding_spec:
                found = layouts[spec.tensor_name]
                assert found is not None
                layout, shape = found.layout(), graph.tensors[spec.tensor_name].shape
                assert shape is not None
                where = held(spec, shape)
                assert set(where) == set(range(4))
                for rank, region in where.items():
                    assert region == tuple((s.start, s.stop) for s in layout.region(shape, plan.mesh, rank))
                specs += 1
    assert specs > len(graph.ops)


def trained(path: Path) -> Path:
    """A small model with its weights in it."""
    draw = np.random.default_rng(0)
    weights = {"w1": draw.standard_normal((8, 16)), "w2": draw.standard_normal((16, 4))}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(v.astype(np.float32), n) for n, v in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    return path


def test_the_checker_passes_and_the_runtime_computes_the_same(tmp_path: Path) -> None:
    plain = trained(tmp_path / "small.onnx")
    path = annotated(tmp_path, plain, 4, "mesh=2x2", "h m=x n=y", "y m=x k=y")
    onnx.checker.check_model(str(path), full_check=True)
    model = onnx.load(str(path))
    assert model.ir_version >= 11
    assert sum(len(n.device_configurations) for n in model.graph.node) == 3
    x = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    results = [
        onnxruntime.InferenceSession(str(p), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for p in (plain, path)
    ]
    np.testing.assert_array_equal(*results)
    again = onnx.ModelProto.FromString(model.SerializeToString())
    assert again == model


def configuration(node: onnx.NodeProto) -> onnx.NodeDeviceConfigurationProto:
    return node.device_configurations[0]


def spec(model: onnx.ModelProto, node: int = 0, at: int = 0) -> onnx.ShardingSpecProto:
    return configuration(model.graph.node[node]).sharding_spec[at]


NONSENSE: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: setattr(m, "ir_version", 10), "multi-device annotations begin with 11"),
    (lambda m: setattr(m.configuration[0], "num_devices", 3), "3 devices, 4 are named"),
    (lambda m: m.configuration.add(name=CONFIGURATION, num_devices=4), "expected a name of its own"),
    (lambda m: setattr(configuration(m.graph.node[0]), "configuration_id", "x"), "'x' is not defined"),
    (lambda m: setattr(spec(m), "tensor_name", "elsewhere"), "none of its inputs and outputs"),
    (lambda m: configuration(m.graph.node[0]).sharding_spec.append(spec(m)), "has 2 specifications"),
    (lambda m: spec(m).device.append(1), "shards on"),
    (lambda m: setattr(spec(m).sharded_dim[0], "axis", 5), "the tensor has 2 dimensions"),
    (lambda m: spec(m).sharded_dim.append(spec(m).sharded_dim[0]), "divided twice"),
    (lambda m: setattr(spec(m).sharded_dim[0].simple_sharding[0], "num_shards", 64), "64 shards of 8 elements"),
    (lambda m: setattr(spec(m).sharded_dim[0].simple_sharding[0], "num_shards", 0), "expected shards of at least 1"),
    (lambda m: setattr(spec(m).sharded_dim[0].simple_sharding[0], "dim_value", 9), "says it has 9 elements"),
    (lambda m: spec(m).index_to_device_group_map[0].value.append(7), "the configuration has 4"),
    (lambda m: spec(m).index_to_device_group_map[0].value.append(3), "more than one shard"),
    (lambda m: setattr(spec(m).index_to_device_group_map[0], "key", 2), "expected negative keys"),
    (lambda m: spec(m).device.__setitem__(0, -9), "no such group"),
    (lambda m: setattr(configuration(m.graph.node[0]), "pipeline_stage", -1), "expected 0 or more"),
    (
        lambda m: [
            setattr(configuration(n), "pipeline_stage", s) for n, s in zip(m.graph.node, (2, 1, 1), strict=True)
        ],
        "is made later, in stage 2",
    ),
]


@pytest.mark.parametrize(("spoil", "message"), NONSENSE, ids=[m for _, m in NONSENSE])
def test_nonsense_is_caught(tmp_path: Path, spoil: Callable[[Any], Any], message: str) -> None:
    path = annotated(tmp_path, trained(tmp_path / "small.onnx"), 4, "mesh=2x2", "h m=x n=y", "y m=x k=y")
    model = onnx.load(str(path))
    assert annotation_problems(model) == []
    spoil(model)
    assert any(message in p for p in annotation_problems(model)), annotation_problems(model)


def test_the_model_must_be_the_planned_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    annotated(tmp_path, SAMPLES / "mlp.onnx", 4)
    plan = str(tmp_path / "plan" / "plan.json")
    wrong = ["emit", plan, "--target", "onnx", "--out", str(tmp_path / "x")]
    assert main([*wrong, "--model", str(SAMPLES / "gpt_tiny.onnx")]) == 3
    assert "the model given is another one" in capsys.readouterr().err
    assert main(wrong) == 2
    assert "needs --model" in capsys.readouterr().err


def test_stages_have_their_devices_and_dimensions_are_those_of_the_file(tmp_path: Path) -> None:
    """A pipeline's plan is that of a micro-batch, and the file has the whole batch."""
    sizes = ("--layers", "3", "--features", "64", "--hidden", "4096", "--classes", "32", "--batch", "64")
    path = tmp_path / "mlp.onnx"
    assert main(["build", "mlp", *sizes, "--out", str(path)]) == 0
    arguments = ["search", str(path), "--devices", "8", "--hardware", "ascend-910b", "--no-cache", "--stages", "2"]
    pins = ("--pin", "mesh=4", "--pin", "rest=data_parallel")
    assert main([*arguments, "--micro-batches", "4", *pins, "--out", str(tmp_path / "plan")]) == 0
    plan = str(tmp_path / "plan" / "plan.json")
    assert main(["emit", plan, "--target", "onnx", "--model", str(path), "--out", str(tmp_path / "out")]) == 0
    model = onnx.load(str(tmp_path / "out" / "model.onnx"), load_external_data=False)
    assert annotation_problems(model) == []
    assert model.configuration[0].num_devices == 8
    stages = {n.output[0]: configuration(n).pipeline_stage for n in model.graph.node}
    assert set(stages.values()) == {0, 1}
    for node in model.graph.node:
        for s in configuration(node).sharding_spec:
            groups = {e.key: list(e.value) for e in s.index_to_device_group_map}
            devices = {d for key in s.device for d in (groups[key] if key < 0 else [key])}
            assert devices == set(range(4 * stages[node.output[0]], 4 * stages[node.output[0]] + 4))
            if s.tensor_name == "features":
                assert [p.dim_value for d in s.sharded_dim for p in d.simple_sharding] == [64]
