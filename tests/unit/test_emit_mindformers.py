"""MindFormers' YAML: degrees, stages, recomputed layers; what its layers would do otherwise is refused.  The system
itself reads the files in tests/peer."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.emit.layers import layers_of
from planner.emit.mindformers import emit_mindformers
from planner.emit.mindformers.chunks import chunks_of
from planner.errors import InputError
from planner.planning import PlanDocument, read_plan
from tests.unit.emit_plans import MEGATRON, deepened, search, staged


@pytest.fixture(scope="module")
def tensor(tmp_path_factory: pytest.TempPathFactory) -> PlanDocument:
    return search(tmp_path_factory.mktemp("tp"), "llama_tiny.onnx", 8, *MEGATRON, recompute="blocks")


def sections(plan: PlanDocument) -> dict[str, Any]:
    text = emit_mindformers(plan).files["mindformers.yaml"].decode()
    found = yaml.safe_load(text)
    assert isinstance(found, dict)
    return found


def test_data_and_tensor_parallelism_are_degrees(tensor: PlanDocument) -> None:
    found = sections(tensor)
    config = found["parallel_config"]
    degrees = ("data_parallel", "model_parallel", "context_parallel", "expert_parallel", "pipeline_stage")
    assert [config[k] for k in degrees] == [4, 2, 1, 1, 1]
    assert found["runner_config"] == {"batch_size": 2, "gradient_accumulation_steps": 1}  # of 8 samples
    assert found["recompute_config"]["recompute"] == [[2]]
    assert found["parallel"]["dataset_strategy"][0] == [4, 1]
    assert not found["parallel"]["enable_parallel_optimizer"]
    assert "offset" not in found["model"]["model_config"]


def test_accumulated_gradients_are_steps_without_stages(tensor: PlanDocument) -> None:
    found = sections(staged(tensor, [0, 0], micro_batches=3))
    assert found["runner_config"] == {"batch_size": 2, "gradient_accumulation_steps": 3}
    assert found["parallel_config"]["micro_batch_num"] == 1


def test_optimizer_shards_and_who_shares_them(tmp_path: Path) -> None:
    parallel = sections(search(tmp_path, "gpt_tiny.onnx", 8, "mesh=8", "rest=zero"))["parallel"]
    assert parallel["enable_parallel_optimizer"]
    assert parallel["parallel_optimizer_config"]["optimizer_weight_shard_size"] == 8
    plan = search(tmp_path / "outer", "mlp.onnx", 8, "mesh=2x4", "*.weight stored=[x,_]", "rest=data_parallel")
    lost = emit_mindformers(plan).lost
    assert any("MindSpore takes the innermost of those that compute with equal parts" in line for line in lost)


def test_experts_are_divided_among_neighbouring_data_parallel_ranks(tmp_path: Path) -> None:
    plan = search(tmp_path, "moe_tiny.onnx", 4, "mesh=4", "reads=*.experts.* type=Einsum e=x", "rest=data_parallel")
    found = sections(plan)
    assert found["parallel_config"]["expert_parallel"] == found["parallel_config"]["data_parallel"] == 4
    assert found["parallel"]["enable_alltoall"]


def told(layers: int, stages: int, model: dict[str, Any], recompute: Any) -> tuple[list[int], list[bool]]:
    """Which stage every layer is on, and whether it is recomputed, as LayerSetting (mindformers 2.1) has it."""
    offset = model["offset"]
    chunks = model.get("pp_interleave_num", 1)
    assert (len(offset), len(offset[0])) == (chunks, stages)
    each = layers // (stages * chunks)
    assert sum(map(sum, offset)) == layers - each * stages * chunks
    on: list[int] = []
    again: list[bool] = []
    for v in range(chunks):
        for s in range(stages):
            held = each + offset[v][s]
            on += [s] * held
            again += [bool(recompute) and i < recompute[v][s] for i in range(held)]
    return on, again


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_every_layer_is_on_its_stage_and_as_many_are_recomputed(tensor: PlanDocument, data: st.DataObject) -> None:
    stages, chunks = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 2))
    held = [data.draw(st.integers(1, 3)) for _ in range(stages * chunks)]
    where = [i % stages for i, n in enumerate(held) for _ in range(n)]
    plan = staged(deepened(tensor, len(where)), where, micro_batches=8)
    chosen = data.draw(st.sets(st.integers(0, len(where) - 1)))
    document = plan.model_dump(by_alias=True)
    document["schedule"]["recompute"] = [b for i, b in enumerate(document["schedule"]["recompute"]) if i in chosen]
    plan = PlanDocument.model_validate(document)
    emission = emit_mindformers(plan)
    found = yaml.safe_load(emission.files["mindformers.yaml"])
    recompute = found["recompute_config"]["recompute"]
    on, again = told(len(where), stages, found["model"]["model_config"], recompute)
    assert on == where
    assert found["parallel_config"]["pipeline_stage"] == stages
    assert ("pipeline_config" in found["parallel"]) == (chunks > 1)
    first = 0
    for n in held:
        assert sum(again[first : first + n]) == len(chosen & set(range(first, first + n)))
        first += n
    same = again == [i in chosen for i in range(len(where))]
    assert same != any("which layers are recomputed" in line for line in emission.lost)


def test_a_stage_that_begins_inside_a_layer_is_told(tensor: PlanDocument) -> None:
    plan = staged(tensor, [0, 1], micro_batches=2)
    document = plan.model_dump(by_alias=True)
    document["operators"]["model.layers.1.input_layernorm.mul"]["stage"] = 0
    document["operators"]["model.norm.mul"]["stage"] = 0
    lost = emit_mindformers(PlanDocument.model_validate(document)).lost
    assert any("moved, with their memory and time: model.layers.1, model.norm.mul" in line for line in lost)


def edited(plan: PlanDocument, change: Any) -> PlanDocument:
    document = plan.model_dump(by_alias=True)
    change(document)
    return PlanDocument.model_validate(document)


def test_what_mindformers_cannot_say_of_stages_is_refused(tensor: PlanDocument) -> None:
    with pytest.raises(InputError, match=r"2 micro-batches for 3 stages"):
        emit_mindformers(staged(deepened(tensor, 3), [0, 1, 2], micro_batches=2))
    with pytest.raises(InputError, match="stage 1 holds no whole layer"):
        emit_mindformers(staged(tensor, [0, 2], micro_batches=4))
    with pytest.raises(InputError, match="no layers"):
        emit_mindformers(edited(tensor, _unnamed))
    with pytest.raises(InputError, match="different meshes"):
        emit_mindformers(edited(staged(tensor, [0, 1], micro_batches=2), _another_mesh))
    with pytest.raises(InputError, match=r"1 blocks run again .* which are no layers"):
        emit_mindformers(edited(tensor, lambda d: d["schedule"].update(recompute=[["model.layers.0.mlp.mul"]])))
    with pytest.raises(InputError, match="is one of inference"):
        emit_mindformers(edited(tensor, lambda d: d["schedule"].update(mode="inference")))


def _unnamed(document: dict[str, Any]) -> None:
    names = {n: f"node_{i}" for i, n in enumerate(document["operators"])}
    document["operators"] = {names[n]: {**op, "module": ""} for n, op in document["operators"].items()}
    for p in document["parameters"].values():
        for r in p["readers"]:
            r["operator"] = names[r["operator"]]
    document["redistributions"] = []


def _another_mesh(document: dict[str, Any]) -> None:
    document["meshes"]["m1"] = {"axes": [{"name": "x", "size": 2}, {"name": "y", "size": 4}]}
    document["stages"][1]["mesh"] = "m1"


SPLIT = tuple(p for p in MEGATRON if not p.startswith(("*.softmax", "mesh")))
TURNED = tuple(p.replace("=x", "=T").replace("=y", "=x").replace("=T", "=y").replace("[x", "[y") for p in MEGATRON[1:])
WIDTH = tuple(p for p in SPLIT if "embed" not in p)


@pytest.mark.parametrize(
    ("model", "devices", "pins", "message"),
    [
        ("gpt_tiny.onnx", 8, ("mesh=2x4", "*.c_fc.matmul b0=x n=y", "*.mlp.c_proj.matmul b0=x", "rest=data_parallel"),
         "c_attn.matmul with the whole of parameter"),
        ("llama_tiny.onnx", 8, ("mesh=4x2", *WIDTH, "*.embed_tokens.gather i0=x r0=y", "*.softmax d0=x d1=y"),
         "embed_tokens.weight is divided by width"),
        ("llama_tiny.onnx", 8, ("mesh=4x2", *SPLIT, "*.softmax d0=x"), "is gathered or exchanged among"),
        ("gpt_tiny.onnx", 8, ("mesh=8", "rest=replicated"), "8 devices do the same"),
    ],
)  # fmt: skip
def test_plans_that_mindformers_lays_out_otherwise_are_refused(
    tmp_path: Path, model: str, devices: int, pins: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        emit_mindformers(search(tmp_path, model, devices, *pins))


def test_other_ranks_than_mindformers_takes_are_told(tmp_path: Path) -> None:
    lost = emit_mindformers(search(tmp_path, "llama_tiny.onnx", 8, "mesh=2x4", *TURNED)).lost
    assert any("axis x is outside of y in the plan (2x4), and inside in MindFormers" in line for line in lost)


def test_products_in_another_order_are_refused(tensor: PlanDocument) -> None:
    """Rows before columns: the gate's weight and the one behind it trade their layouts."""

    def change(document: dict[str, Any]) -> None:
        for kind, dims, partial in (("up_proj", [["y"], []], {"y": "sum"}), ("down_proj", [[], ["y"]], {})):
            op = document["operators"][f"model.layers.0.mlp.{kind}.matmul"]
            op["operands"][1]["dims"] = dims
            op["results"][0] |= {"partial": partial, "dims": [["x"], [], [] if partial else ["y"]]}

    with pytest.raises(InputError, match=r"down_proj\.matmul is divided by columns, and no product behind it by rows"):
        emit_mindformers(edited(tensor, change))


def test_the_launch_script_starts_one_process_per_device(tensor: PlanDocument, tmp_path: Path) -> None:
    for name, content in emit_mindformers(tensor).files.items():
        (tmp_path / name).write_bytes(content)
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "msrun").write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    (bin_ / "msrun").chmod(0o755)
    script = tmp_path / "run_mindformer.py"
    script.touch()
    run = subprocess.run(
        ["bash", str(tmp_path / "run_msrun.sh"), str(script), "--config", "a.yaml"],
        env={"PATH": f"{bin_}:/usr/bin:/bin"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    arguments = run.stdout.split("\n")
    assert "--worker_num=8" in arguments
    assert arguments[-4:-1] == [str(script), "--config", "a.yaml"]


def test_layers_are_found_by_their_numbers(tensor: PlanDocument) -> None:
    chunks = chunks_of(tensor, layers_of(tensor))
    assert chunks.counts == [[2]]
    assert not chunks.moved


def test_the_command_line_writes_the_files(tensor: PlanDocument, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(tensor.model_dump(by_alias=True)), encoding="utf-8")
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=4\nb slots=4\n", encoding="utf-8")
    arguments = ["emit", str(path), "--target", "mindformers", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--hosts", str(hosts)]) == 0
    assert "--local_worker_num=4" in (tmp_path / "out" / "run_msrun.sh").read_text(encoding="utf-8")
    assert read_plan(path) == tensor
