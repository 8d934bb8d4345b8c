"""What `emit --target torch` writes for our runtime, without torch: the module's text, and the model beside it."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from planner.builder import build
from planner.cli.main import main
from planner.clock import Configuration
from planner.emit import Given, emit, unsupported
from planner.emit.uniform import Model
from planner.errors import InputError
from planner.frontends import load_model
from planner.planning import read_plan
from tests.unit.frontends_models import BOOL, INT64, constant, node, serialised, value

SEARCH = ("--devices", "2", "--hardware", "cpu", "--no-cache", "--mode", "training")
MLP = {"features": 16, "hidden": 64, "layers": 2, "classes": 8, "batch": 16}


def searched(model: Path, out: Path, *more: str) -> Path:
    assert main(["search", str(model), *SEARCH, *more, "--out", str(out)]) == 0
    return out / "plan.json"


def mlp(folder: Path) -> Path:
    path = folder / "mlp.onnx"
    path.write_bytes(build("mlp", MLP).SerializeToString())
    return path


def masked(folder: Path, *, loss: bool = True) -> Path:
    """A product whose result is replaced, where the mask is not set, by a table that is no weight."""
    table = numpy_helper.from_array(np.arange(64 * 64, dtype=np.float32).reshape(64, 64), "table")
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "fc.weight")
    mask = constant("mask", np.tri(64), "bool")
    nodes = [node("MatMul", "x fc.weight", "h", module="fc"), node("Where", "mask h table", "y")]
    ends = [node("SoftmaxCrossEntropyLoss", "y labels", "loss")] if loss else []
    inputs = [value("x", [64, 64]), *([value("labels", [64], INT64)] if loss else [])]
    outputs = [value("loss", [])] if loss else [value("y", [64, 64])]
    path = folder / "masked.onnx"
    path.write_bytes(serialised([*nodes, *ends], inputs, outputs, [table, weight, mask]))
    return path


def stored(content: bytes) -> dict[str, onnx.TensorProto]:
    return {t.name: t for t in onnx.load_from_string(content).graph.initializer}


def test_the_model_loses_its_weights_and_keeps_other_numbers(tmp_path: Path) -> None:
    model = masked(tmp_path)
    plan = read_plan(searched(model, tmp_path / "plan"))
    found = stored(emit("torch", Given(plan, model_file=model)).files["model.onnx"])
    assert found["fc.weight"].data_location == onnx.TensorProto.EXTERNAL
    assert not found["fc.weight"].raw_data
    np.testing.assert_array_equal(numpy_helper.to_array(found["table"])[1, :3], [64, 65, 66])
    assert found["mask"].data_type == BOOL


def test_numbers_in_a_file_beside_the_model_come_along(tmp_path: Path) -> None:
    model = masked(tmp_path)
    proto = onnx.load(model)
    onnx.save(proto, model, save_as_external_data=True, location="masked.data", size_threshold=2048)
    assert stored(model.read_bytes())["table"].data_location == onnx.TensorProto.EXTERNAL
    plan = read_plan(searched(model, tmp_path / "plan"))
    files = emit("torch", Given(plan, model_file=model)).files
    (tmp_path / "out").mkdir()
    for name in ("model.onnx", "constants.data"):
        (tmp_path / "out" / name).write_bytes(files[name])
    assert len(files["constants.data"]) == 64 * 64 * 5, "the table and the mask, and not the weight"
    table = stored(files["model.onnx"])["table"]
    np.testing.assert_array_equal(numpy_helper.to_array(table, str(tmp_path / "out"))[1, :3], [64, 65, 66])
    assert load_model(tmp_path / "out" / "model.onnx").digest == load_model(model).digest == plan.model.digest
    (tmp_path / "masked.data").write_bytes(bytes(100))
    with pytest.raises(InputError, match=r"masked\.data: the data of (table|mask) cannot be read"):
        emit("torch", Given(plan, model_file=model))


@pytest.mark.parametrize("way", ["a path", "a link"])
def test_no_file_outside_of_the_models_folder_is_read(way: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(bytes(64 * 64 * 4))
    folder = tmp_path / "in"
    folder.mkdir()
    model = masked(folder)
    proto = onnx.load(model)
    (folder / "link").symlink_to(tmp_path / "outside")
    for t in proto.graph.initializer:
        if t.name == "table":
            t.ClearField("raw_data")
            t.data_location = onnx.TensorProto.EXTERNAL
            t.external_data.add(key="location", value="../outside" if way == "a path" else "link")
    model.write_bytes(proto.SerializeToString())
    plan = read_plan(searched(model, tmp_path / "plan"))
    files = emit("torch", Given(plan, model_file=model)).files
    assert "constants.data" not in files
    assert stored(files["model.onnx"])["table"].data_location == onnx.TensorProto.EXTERNAL


def test_the_model_beside_a_plan_will_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = searched(mlp(tmp_path), tmp_path / "plan")
    capsys.readouterr()
    assert main(["emit", str(plan), "--target", "torch", "--out", str(tmp_path / "out"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {Path(f).name for f in told["files"]} >= {"parallel.py", "plan.json", "model.onnx", "run_torchrun.sh"}
    assert told["lost"] == []
    assert read_plan(tmp_path / "out" / "plan.json") == read_plan(plan)
    (tmp_path / "plan" / "model.onnx").unlink()
    assert main(["emit", str(plan), "--target", "torch", "--out", str(tmp_path / "out")]) == 3
    assert "no model.onnx lies beside it; give the model that was planned with --model" in capsys.readouterr().err


def test_inputs_are_those_of_the_whole_batch_in_the_graphs_order(tmp_path: Path) -> None:
    model = mlp(tmp_path)
    plan = read_plan(searched(model, tmp_path / "plan", "--stages", "2", "--micro-batches", "4"))
    assert plan.schedule.micro_batches == 4
    text = emit("torch", Given(plan, model_file=model)).files["parallel.py"].decode()
    (found,) = re.findall(r"^INPUTS = (\[.*?^\])", text, re.MULTILINE | re.DOTALL)
    tensors = [load_model(model).tensors[n] for n in load_model(model).inputs]
    assert ast.literal_eval(re.sub(r"torch\.(\w+)", r"'\1'", found)) == [(t.name, t.shape, t.dtype) for t in tensors]
    assert "# a whole step: forward and backward, of 4 micro-batches" in text


def test_a_plan_without_a_loss_or_for_inference_is_refused(tmp_path: Path) -> None:
    model = masked(tmp_path, loss=False)
    plan = read_plan(searched(model, tmp_path / "plan"))
    with pytest.raises(InputError, match=r"ends in no loss.*planner\.torch\.plan"):
        emit("torch", Given(plan, model_file=model))
    plan = read_plan(searched(mlp(tmp_path), tmp_path / "other", "--mode", "inference"))
    with pytest.raises(InputError, match="it is for inference"):
        emit("torch", Given(plan, model_file=mlp(tmp_path)))


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        (Configuration(dp=2, pp=4, schedule="zb-v", virtual_stages=2), ""),
        (Configuration(dp=8, zero=3), ""),
        (Configuration(dp=8, zero=2, shard_ranks=4), ""),
        (Configuration(tp=8, micro_batches=2, copies=2), ""),
        (Configuration(dp=8, recompute="full"), ""),
        (Configuration(dp=8, recompute="full", recompute_blocks=0.5), "full recomputation of a part"),
        (Configuration(dp=8, recompute="selective"), "selective recomputation of a part"),
        (Configuration(dp=8, offload=0.5), "activations that wait in the host's memory"),
    ],
    ids=lambda c: "" if isinstance(c, str) else str(c),
)
def test_what_the_runtime_runs_is_searched_for_it(configuration: Configuration, words: str) -> None:
    assert unsupported("torch", configuration, Model(tied=False, tables_tied=False, tokens=True)) == words
