"""A graph per rank: run in step on ONNX Runtime, collectives by numpy, they give what the whole model gives."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, defs, helper, numpy_helper

from planner.cli.main import main
from planner.emit import Given, emit
from planner.emit.onnx.domain import DOMAIN, register, schemas
from planner.errors import InputError
from planner.frontends import load_model
from planner.planning import PlanDocument, read_plan
from planner.verify.data import random_tensors
from tests.unit.rank_graphs import collectives, run_ranks, run_whole

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_graphs"
MEGATRON = (
    "mesh=2x2", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
    "*.mlp.c_proj.matmul b0=x k=y", "rest=data_parallel",
)  # fmt: skip
VOCABULARY = ("mesh=2x2", "transformer.wte.gather v=y", "type=SoftmaxCrossEntropyLoss n=x c=y")

register()


def shown(name: str, folder: Path) -> Path:
    """A sample that also gives its scores, which a loss says little about."""
    model = onnx.load(str(SAMPLES / f"{name}.onnx"), load_external_data=False)
    loss = next(n for n in model.graph.node if n.op_type == "SoftmaxCrossEntropyLoss")
    model.graph.output.append(onnx.ValueInfoProto(name=loss.input[0]))
    inferred = onnx.shape_inference.infer_shapes(model)
    model.graph.output[-1].CopyFrom(next(v for v in inferred.graph.value_info if v.name == loss.input[0]))
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def plan_of(model: Path, folder: Path, devices: int, *pins: str) -> Path:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(model), "--devices", str(devices), "--hardware", "cpu", "--no-cache"]
    assert main([*arguments, "--out", str(folder / "plan"), *options]) == 0
    return folder / "plan" / "plan.json"


def ranks_of(model: Path, folder: Path, devices: int, *pins: str) -> Path:
    plan = plan_of(model, folder, devices, *pins)
    out = folder / "out"
    assert main(["emit", str(plan), "--target", "onnx-ranks", "--model", str(model), "--out", str(out)]) == 0
    return out


def agree(model: Path, out: Path, seed: int = 0) -> None:
    """The ranks' outputs are the whole model's."""
    values = random_tensors(load_model(model), seed)
    wanted, found = run_whole(model, values), run_ranks(out, values)
    assert found.keys() == wanted.keys()
    for name, y in wanted.items():
        scale = max(float(np.abs(y).max()), 1e-3)
        assert float(np.abs(found[name] - y).max()) <= 2e-5 * scale, name


@pytest.mark.parametrize(
    ("name", "devices", "pins", "kinds"),
    [
        ("mlp", 4, ("rest=data_parallel",), "AllReduce"),
        ("mlp", 8, ("rest=zero",), "AllGather"),
        ("mlp", 4, ("mesh=2x2", "type=MatMul m=x n=y"), "AllGather"),
        ("mlp", 4, ("mesh=2x2", "type=MatMul k=y"), "ReduceScatter"),
        ("mlp", 4, ("type=SoftmaxCrossEntropyLoss c=4",), "AllReduce"),
        ("gpt_tiny", 4, ("rest=data_parallel",), "AllReduce"),
        ("gpt_tiny", 4, MEGATRON, "AllReduce AllGather"),
        ("gpt_tiny", 4, VOCABULARY, "AllReduce"),
        ("gpt_tiny", 4, ("transformer.h.?.add* layout=[_,x,_]",), "AllGather"),
        ("gpt_tiny", 4, ("mesh=2x2", "type=Softmax d2=x d3=y", "type=LayerNormalization d1=x d2=y"), "AllReduce"),
        ("gpt_tiny", 2, (), ""),
        ("bert_tiny", 4, ("mesh=2x2", "type=LayerNormalization d0=x d2=y", "type=Softmax d3=x"), "AllReduce"),
        ("llama_tiny", 4, ("mesh=2x2", "type=Softmax d1=x d3=y", "*self_attn.concat_1 s3=y"), "AllGather AllToAllV"),
        ("resnet18_tiny", 4, ("rest=data_parallel",), "AllReduce"),
        ("resnet18_tiny", 4, ("mesh=2x2", "layer*conv? n=x o=y"), ""),
        ("resnet18_tiny", 4, ("mesh=2x2", "layer1*conv? y0=x y1=y", "layer2*conv? n=x y0=y"), "AllToAllV"),
        ("moe_tiny", 4, ("rest=data_parallel",), "AllReduce"),
        ("moe_tiny", 4, ("mesh=2x2", "reads=*.experts.* e=x"), "AllGather"),
        ("moe_tiny", 4, ("mesh=2x2", "type=TopK v=x", "type=CumSum d0=y", "*moe.onehot v=y"), "AllGather"),
        ("moe_tiny", 3, (), ""),
        ("vit_tiny", 4, ("mesh=2x2", "type=Concat d0=x", "type=Softmax d0=x d1=y"), ""),
    ],
)  # fmt: skip
def test_ranks_in_step_give_what_the_whole_model_gives(
    tmp_path: Path, name: str, devices: int, pins: tuple[str, ...], kinds: str
) -> None:
    model = shown(name, tmp_path)
    out = ranks_of(model, tmp_path, devices, *pins)
    index = json.loads((out / "ranks.json").read_text(encoding="utf-8"))
    assert [e["file"] for e in index["ranks"]] == sorted(p.name for p in out.glob("*.onnx"))
    found = set()
    for entry in index["ranks"]:
        onnx.checker.check_model(str(out / entry["file"]), full_check=True)  # shapes across collectives included
        found |= {n.op_type for n in collectives(onnx.load(str(out / entry["file"])))}
    assert set(kinds.split()) <= found
    assert counted(out) == planned(read_plan(tmp_path / "plan" / "plan.json"))
    agree(model, out)


def counted(out: Path) -> dict[str, int]:
    """Reductions in a rank's file, by kind."""
    kinds = Counter(n.op_type for n in collectives(onnx.load(str(out / "rank_00000.onnx"))))
    return {kind: kinds[kind] for kind in ("AllReduce", "ReduceScatter")}


def planned(plan: PlanDocument) -> dict[str, int]:
    """Those of the forward pass in the plan, between operators and inside."""
    between = [s.kind for r in plan.redistributions if r.direction == "forward" for s in r.steps]
    inside = sum(c.count for o in plan.operators.values() for c in o.inner if c.kind == "all_reduce" and not c.backward)
    return {"AllReduce": between.count("all_reduce") + inside, "ReduceScatter": between.count("reduce_scatter")}


def trained(path: Path) -> Path:
    """A small model with its weights in it, one behind an Identity, and a constant too large to be kept."""
    draw = np.random.default_rng(0)
    weights = {
        "w1": draw.standard_normal((8, 16)).astype(np.float32),
        "w2": draw.standard_normal((16, 4)).astype(np.float32),
        "a.bias": np.zeros(16, np.float32),
        "table": draw.standard_normal((64, 4)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"]),
            helper.make_node("Identity", ["a.bias"], ["b.bias"]),
            helper.make_node("Add", ["h", "a.bias"], ["i"]),
            helper.make_node("Add", ["i", "b.bias"], ["j"]),
            helper.make_node("Relu", ["j"], ["r"]),
            helper.make_node("MatMul", ["r", "w2"], ["y"]),
            helper.make_node("Gather", ["table", "at"], ["t"]),
            helper.make_node("Add", ["y", "t"], ["z"]),
        ],
        "small",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8]),
            helper.make_tensor_value_info("at", TensorProto.INT64, [8]),
        ],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [8, 4])],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), str(path))
    return path


@pytest.mark.parametrize(
    "pins", [("mesh=2x2", "h m=x n=y", "y m=x k=y", "t v=y"), ("rest=zero",), ("mesh=2x2", "z d0=x d1=y")]
)
def test_ranks_hold_their_parts_of_the_weights(tmp_path: Path, pins: tuple[str, ...]) -> None:
    model = trained(tmp_path / "small.onnx")
    out = ranks_of(model, tmp_path, 4, *pins)
    draw = np.random.default_rng(1)
    fed = {"x": draw.standard_normal((8, 8)).astype(np.float32), "at": draw.integers(-64, 64, 8)}
    weights = {t.name: numpy_helper.to_array(t) for t in onnx.load(str(model)).graph.initializer}
    index = json.loads((out / "ranks.json").read_text(encoding="utf-8"))
    for entry in index["ranks"]:
        assert entry["inputs"].keys() == fed.keys()
        assert {h["tensor"] for h in entry["initializers"].values()} >= weights.keys()
    wanted, found = run_whole(model, fed), run_ranks(out, {**weights, **fed})
    np.testing.assert_allclose(found["z"], wanted["z"], rtol=1e-4, atol=1e-5)


def test_files_are_the_same_however_they_are_asked_for(tmp_path: Path) -> None:
    model = trained(tmp_path / "small.onnx")
    plan = read_plan(plan_of(model, tmp_path, 4, "mesh=2x2", "h m=x n=y"))
    files = emit("onnx-ranks", Given(plan, model_file=model)).files
    assert list(files) == [*(f"rank_{r:05d}.onnx" for r in range(4)), "ranks.json"]
    index = files["ranks.json"]
    first = {name: files[name] for name in reversed(list(files))}
    assert dict(files.items()) == first
    assert files["ranks.json"] == index
    for name in ("rank_00004.onnx", "rank_1.onnx", "rank_-0001.onnx", "model.onnx"):
        with pytest.raises(KeyError):
            files[name]


def attending(path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Attention", ["q", "k", "v"], ["y"], is_causal=1)],
        "attending",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4, 8, 16]) for n in "qkv"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4, 8, 16])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), str(path))
    return path


def dropping(path: Path) -> Path:
    training = numpy_helper.from_array(np.array(True), "training")
    ratio = numpy_helper.from_array(np.array(0.5, np.float32), "ratio")
    graph = helper.make_graph(
        [helper.make_node("Dropout", ["x", "ratio", "training"], ["y"])],
        "dropping",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])],
        [ratio, training],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return path


def test_causal_attention_of_a_part_of_the_queries_is_masked_by_its_place(tmp_path: Path) -> None:
    model = attending(tmp_path / "attending.onnx")
    agree(model, ranks_of(model, tmp_path, 4, "mesh=2x2", "y h=x s=y"))


def test_attention_of_parts_of_the_keys_is_joined_by_their_normalisers(tmp_path: Path) -> None:
    model = attending(tmp_path / "attending.onnx")
    agree(model, ranks_of(model, tmp_path, 4, "mesh=2x2", "y h=x t=y"))


@pytest.mark.parametrize("pins", [("y s&t=4",), ("mesh=2x2", "y h=x s&t=y")])
def test_keys_that_travel_round_a_ring_are_met_by_every_query(tmp_path: Path, pins: tuple[str, ...]) -> None:
    model = attending(tmp_path / "attending.onnx")
    agree(model, ranks_of(model, tmp_path, 4, *pins))


@pytest.mark.parametrize(
    ("make", "pins", "told"),
    [
        (dropping, ("y d0=4",), ("draws random numbers",)),
        (dropping, ("y replicated",), ("draws random numbers",)),
    ],
)
def test_what_has_no_nodes_is_refused_with_what_to_pin(
    tmp_path: Path, make: type[Path], pins: tuple[str, ...], told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model = make(tmp_path / "model.onnx")
    plan = plan_of(model, tmp_path, 4, *pins)
    capsys.readouterr()
    arguments = ["emit", str(plan), "--target", "onnx-ranks", "--model", str(model), "--out", str(tmp_path / "out")]
    assert main(arguments) == 3
    error = capsys.readouterr().err
    assert "operator y" in error
    assert all(t in error for t in told), error
    assert not (tmp_path / "out").exists()


def test_a_file_that_protobuf_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(tmp_path / "small.onnx")
    plan = read_plan(plan_of(model, tmp_path, 2, "rest=data_parallel"))
    monkeypatch.setattr(import_module("planner.emit.onnx.ranks.emitter"), "MOST_BYTES", 256)
    with pytest.raises(InputError, match=r"rank 0 alone .*planner run"):
        emit("onnx-ranks", Given(plan, model_file=model))


def test_operator_sets_too_old_for_what_is_written_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(str(trained(tmp_path / "small.onnx")))
    model.opset_import[0].version = 9
    path = tmp_path / "old.onnx"
    onnx.save(model, str(path))
    plan = plan_of(path, tmp_path, 4, "t v=4")
    arguments = ["emit", str(plan), "--target", "onnx-ranks", "--model", str(path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 3
    assert "has operator set 9; convert it" in capsys.readouterr().err


def test_the_document_says_what_the_schemas_say() -> None:
    text = (ROOT / "docs" / "onnx-collectives.md").read_text(encoding="utf-8")
    told = {
        m[1]: set(re.findall(r"`(\w+)`", m[2]))
        for m in re.finditer(r"^\| `([A-Z]\w+)` \| ([^|]*) \|", text, flags=re.MULTILINE)
    }
    assert told == {s.name: {*s.attributes, *(i.name for i in s.inputs)} for s in schemas()}
    for s in schemas():
        assert defs.has(s.name, DOMAIN)


def test_shape_inference_goes_through_collectives_and_stops_at_what_does_not_divide() -> None:
    def inferred(kind: str, shape: list[int], **attributes: object) -> list[int]:
        node = helper.make_node(kind, ["x"], ["y"], domain=DOMAIN, **attributes)
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a"] * len(shape))
        graph = helper.make_graph([node], "g", [x], [y])
        imports = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=10)
        found = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        return [d.dim_value for d in found.graph.output[0].type.tensor_type.shape.dim]

    ranks = [3, 1, 2]
    assert inferred("AllReduce", [4, 6], ranks=ranks, op="sum") == [4, 6]
    assert inferred("AllGather", [4, 6], ranks=ranks, axis=0) == [12, 6]
    assert inferred("ReduceScatter", [4, 6], ranks=ranks, axis=1, op="max") == [4, 2]
    assert inferred("AllToAll", [4, 6], ranks=ranks, split_axis=1, concat_axis=0) == [12, 2]
    assert inferred("AllToAllV", [4, 6], ranks=ranks, axis=0, send_sizes=[1, 2, 1], receive_sizes=[0, 5, 2]) == [7, 6]
    assert inferred("Permute", [4, 6], source=1) == [4, 6]
    with pytest.raises(onnx.shape_inference.InferenceError, match="does not divide"):
        inferred("ReduceScatter", [4, 6], ranks=ranks, axis=0, op="sum")
