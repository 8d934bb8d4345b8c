"""`planner search --strategy`: known configurations become plans that have their degrees, and are right."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from planner.cli.main import main
from planner.cost_models import load_profile
from planner.emit.scheme import scheme_of
from planner.errors import UsageError
from planner.evaluate import Configuration
from planner.frontends import load_model
from planner.planning import PlanDocument, Request, make_plan, read_plan
from planner.planning.execution import run_of
from planner.planning.schemes import KEYS, parse_strategy
from planner.planning.schemes.pins import constraints_of_configuration
from planner.pricing import Settings
from planner.requests.search import SearchRequest
from planner.requests.strategy import take_strategy
from tests.unit.evaluate_graphs import gpt
from tests.unit.fused_models import FUSED, fused_model

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def search(folder: Path, model: str, strategy: str, *options: str) -> PlanDocument:
    arguments = ["search", str(SAMPLES / f"{model}.onnx"), "--devices", "8", "--batch", "32", "--no-cache"]
    assert main([*arguments, "--strategy", strategy, "--out", str(folder), *options]) == 0
    return read_plan(folder / "plan.json")


@pytest.mark.parametrize(
    ("model", "strategy", "uses", "shards", "sequence"),
    [
        ("gpt_tiny", "ddp", {"x": "data"}, 1, False),
        ("gpt_tiny", "fsdp", {"x": "data"}, 8, False),
        ("gpt_tiny", "hsdp:shard=4", {"x": "data", "y": "data"}, 4, False),
        ("gpt_tiny", "megatron:tp=2,sp=false,zero=0", {"x": "data", "y": "tensor"}, 1, False),
        ("gpt_tiny", "megatron:tp=2", {"x": "data", "y": "tensor"}, 4, True),
        ("gpt_tiny", "megatron:cp=2,tp=2", {"x": "data", "y": "context", "z": "tensor"}, 4, True),
        ("gpt_tiny", "megatron:cp=4,shard=4", {"x": "data", "y": "context"}, 4, False),
        ("gpt_tiny", "megatron:cp=8", {"x": "context"}, 8, False),
        ("llama_tiny", "megatron:tp=2", {"x": "data", "y": "tensor"}, 4, True),
        ("moe_tiny", "megatron:ep=4", {"x": "data", "y": "expert"}, 8, False),
    ],
)
def test_the_plan_has_the_degrees_of_the_configuration_and_is_right(
    tmp_path: Path, model: str, strategy: str, uses: dict[str, str], shards: int, sequence: bool
) -> None:
    plan = search(tmp_path, model, strategy)
    found = scheme_of(plan, "a launcher")
    assert found.uses == uses
    assert (found.shards, found.sequence) == (shards, sequence)
    assert main(["verify", str(tmp_path / "plan.json"), str(SAMPLES / f"{model}.onnx")]) == 0


def test_optimizer_state_takes_what_evaluate_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strategy = "megatron:cp=2,tp=2,sp=false,micro_batch=16"
    plan = search(tmp_path, "gpt_tiny", strategy)
    stored = sum(
        math.prod(n // plan.mesh.size(axes) for n, axes in zip(p.shape, p.stored.dims, strict=True))
        for p in plan.parameters.values()
    )
    capsys.readouterr()
    command = ["evaluate", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--batch", "32", "--strategy", strategy]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["memory_bytes"]
    assert stored * 12 == pytest.approx(found["optimizer"], rel=0.01)  # vectors that do not divide are whole


def test_megatrons_block_is_columns_then_rows(tmp_path: Path) -> None:
    cuts = scheme_of(search(tmp_path, "gpt_tiny", "megatron:tp=2"), "Megatron").cuts
    block = {n.removeprefix("transformer.h.1."): c for n, c in cuts.items() if n.startswith("transformer.h.1.")}
    assert block == {
        "ln_1.weight": "whole", "ln_1.bias": "whole", "ln_2.weight": "whole", "ln_2.bias": "whole",
        "attn.c_attn.weight": "column", "attn.c_attn.bias": "follows",
        "attn.c_proj.weight": "row", "attn.c_proj.bias": "whole",
        "mlp.c_fc.weight": "column", "mlp.c_fc.bias": "follows",
        "mlp.c_proj.weight": "row", "mlp.c_proj.bias": "whole",
    }  # fmt: skip
    assert cuts["transformer.wte.weight"] == "vocabulary"


def pinned(dp: int, **c: Any) -> dict[str, frozenset[str]]:
    """Operator → what its innermost axis, tensor parallelism of GPT-2's output layer over two ranks, splits."""
    configured = Configuration(dp=dp, tp=2, **c)
    sizes = {"layers": 1, "hidden": 768, "heads": 12, "vocab": 50304, "seq": 1024}
    found = constraints_of_configuration(gpt(batch=configured.micro_batch * dp, **sizes), configured, "--strategy")
    tensor = "xyzw"[len(found.meshes[0]) - 1]
    return {
        op.match[0]: frozenset(f for f, axes in op.strategy.axes_by_factor.items() if tensor in axes)
        for op in found.operators
    }


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("micro_batch", [1, 2])
def test_what_tensor_parallel_ranks_divide_is_the_same_with_any_number_of_data_parallel_ranks(
    sequence_parallel: bool, micro_batch: int
) -> None:
    few, many = (pinned(dp, sequence_parallel=sequence_parallel, micro_batch=micro_batch) for dp in (2, 128))
    assert few == many
    assert next(split for op, split in few.items() if op.startswith("lm_head.matmul")) == {"n"}


def test_a_tied_output_layer_is_divided_by_columns_however_many_samples_a_rank_has(tmp_path: Path) -> None:
    plan = search(tmp_path, "gpt_tiny", "megatron:tp=2,sp=false,micro_batch=16", "--batch", "64")
    assert plan.operators["lm_head.matmul"].strategy == {"x": "split:b0", "y": "split:n"}
    assert scheme_of(plan, "Megatron").uses == {"x": "data", "y": "tensor"}


def test_pipeline_micro_batches_and_recomputation_are_taken(tmp_path: Path) -> None:
    plan = search(tmp_path, "gpt_tiny", "megatron:tp=2,pp=2,micro_batch=2,recompute=full")
    assert (plan.schedule.stages, plan.schedule.micro_batches, plan.model.batch) == (2, 8, 4)
    assert plan.devices == 8
    assert len(plan.schedule.recompute) == 2


@pytest.mark.parametrize("target", ["megatron", "torchtitan", "dtensor"])
@pytest.mark.parametrize("strategy", ["megatron:tp=2", "megatron:cp=2,tp=2"])
def test_launchers_take_such_a_plan(tmp_path: Path, target: str, strategy: str) -> None:
    search(tmp_path, "gpt_tiny", strategy)
    assert main(["emit", str(tmp_path / "plan.json"), "--target", target, "--out", str(tmp_path / target)]) == 0


def test_how_a_step_is_run_stands_in_the_plan_and_what_a_launcher_has_to_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = search(tmp_path / "usual", "gpt_tiny", "megatron:tp=2")
    plan = search(tmp_path / "other", "gpt_tiny", "megatron:tp=2,attention=unfused,loss=operators,overlap_tensor=true")
    assert plan.schedule.run | {"attention": "native", "loss": "fused", "overlap_tensor": False} == usual.schedule.run
    assert plan.cost.step_time_s > usual.cost.step_time_s
    assert {n: o.strategy for n, o in plan.operators.items()} == {n: o.strategy for n, o in usual.operators.items()}
    for folder, said in (("usual", False), ("other", True)):
        capsys.readouterr()
        arguments = ["emit", str(tmp_path / folder / "plan.json"), "--target", "megatron", "--out", str(tmp_path / "m")]
        assert main(arguments) == 0
        assert ("attention=unfused, loss=operators, overlap_tensor=true" in capsys.readouterr().out) == said


@pytest.mark.parametrize("target", ["mindspore", "dtensor"])
@pytest.mark.parametrize("name", FUSED)
def test_fused_weights_are_divided_as_the_target_can_say(tmp_path: Path, name: str, target: str) -> None:
    """Law: a target that splits a dimension as one, not each of its equal parts, takes tensor parallelism as well."""
    (tmp_path / "model.onnx").write_bytes(fused_model(name))
    arguments = ["search", str(tmp_path / "model.onnx"), "--devices", "4", "--no-cache", "--out", str(tmp_path)]
    assert main([*arguments, "--strategy", "megatron:tp=2,zero=0", "--target", target]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert not any(p.stored.parts for p in plan.parameters.values())
    assert main(["verify", str(tmp_path / "plan.json"), str(tmp_path / "model.onnx")]) == 0


@pytest.mark.parametrize("key", [k for k in KEYS if k != "dp"])  # which has to be what the others leave
def test_every_key_changes_the_plan_or_is_refused(key: str) -> None:
    values = {
        "tp": "2", "pp": "2", "cp": "2", "ep": "2", "micro_batch": "2", "vpp": "2", "stage_layers": "1-1",
        "shard": "4", "zero": "0", "sp": "false", "recompute": "full", "recompute_blocks": "0.5", "offload": "0.5",
        "schedule": "gpipe", "matrix": "fp8", "attention": "unfused", "parameter_bytes": "4", "gradient_bytes": "2",
        "recompute_layers": "1-0", "offload_layers": "0-1", "context": "all-to-all",
        "copies": "2", "cast_gathers": "true", "fuse": "false", "loss": "softmax", "frozen": "true",
        "overlap_gradients": "false", "overlap_parameters": "false", "overlap_tensor": "true",
        "overlap_pipeline": "false",
    }  # fmt: skip
    others = {
        "sp": "tp=2",
        "copies": "tp=2",
        "context": "cp=2",
        "recompute_blocks": "recompute=full",
        "vpp": "pp=2",
        "stage_layers": "pp=2",
        "recompute_layers": "pp=2,recompute=full",
        "offload_layers": "pp=2",
    }.get(key, "")

    def taken(strategy: str) -> object:
        request = SearchRequest(SAMPLES / "moe_tiny.onnx", "8", batch=32, strategy=strategy)
        *said, run, pins = take_strategy(request, lambda batch: load_model(request.model, batch=batch))
        return (
            said,
            run_of(run),
            (run.stage_layers, run.order, run.virtual_stages),
            pins.meshes,
            [p.strategy for p in pins.operators],
            [p.stored for p in pins.parameters],
        )

    without = taken(f"megatron:{others}")
    with contextlib.suppress(UsageError):
        assert taken(f"megatron:{others},{key}={values[key]}") != without


@pytest.mark.parametrize(
    ("strategy", "options", "status", "message"),
    [
        ("megatron:tp=3", (), 2, "does not divide 8 devices"),
        ("hsdp:shard=3", (), 2, "expected a divisor of dp * cp"),
        ("megatron:cp=4,shard=2", (), 2, "a multiple of ep * cp = 4"),
        ("megatron:ep=8", (), 2, "the model has no weights of experts"),
        ("ddp:matrix=fp4", (), 2, "has no units for it"),
        ("megatron:pp=2,vpp=2", (), 2, "the model has 2 layers to cut between"),
        ("megatron:tp=2", ("--stages", "2"), 2, "says stages, micro-batches and mesh itself"),
        ("nonsense", (), 2, "expected one of ddp"),
        ("ddp", ("--recompute", "blocks"), 2, "--recompute blocks: --strategy says what is run again"),
        ("megatron:tp=2,recompute=full", ("--recompute", "none"), 2, "--strategy says what is run again"),
        ("megatron:tp=2", ("--pin", "*.c_fc.matmul replicated"), 3, "contradict"),
    ],
)
def test_what_cannot_be_planned_so_is_said(
    tmp_path: Path,
    strategy: str,
    options: tuple[str, ...],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--batch", "32", "--no-cache"]
    assert main([*arguments, "--strategy", strategy, "--out", str(tmp_path), *options]) == status
    assert message in capsys.readouterr().err


def test_rows_that_are_looked_up_are_no_samples(tmp_path: Path) -> None:
    """Samples that are picked by their numbers: data parallelism leaves the table of samples whole."""
    tensor = onnx.helper.make_tensor_value_info
    x, y = tensor("x", onnx.TensorProto.FLOAT, [8, 16]), tensor("y", onnx.TensorProto.FLOAT, [4, 16])
    weights = [
        onnx.numpy_helper.from_array(np.arange(0, 8, 2), "rows"),
        onnx.numpy_helper.from_array(np.ones((16, 16), np.float32), "w"),
    ]
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Gather", ["a", "rows"], ["y"], axis=0),
    ]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "picked", [x], [y], weights),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
        ir_version=10,
    )
    onnx.save(model, str(tmp_path / "picked.onnx"))
    arguments = ["search", str(tmp_path / "picked.onnx"), "--devices", "2", "--mode", "training", "--no-cache"]
    assert main([*arguments, "--strategy", "ddp", "--out", str(tmp_path / "plan")]) == 0
    assert read_plan(tmp_path / "plan" / "plan.json").operators["a"].strategy == {"x": "split:m"}


def test_inference_holds_no_gradients(tmp_path: Path) -> None:
    plan = search(tmp_path, "gpt_tiny", "ddp", "--mode", "inference")
    assert plan.cost.peak_memory_bytes == sum(plan.cost.memory_bytes.values())
    assert not plan.cost.memory_bytes.get("gradients")
    assert not plan.cost.memory_bytes.get("optimizer")


@pytest.mark.parametrize("strategy", ["ddp", "megatron:pp=2"])
def test_a_strategy_that_does_not_fit_says_what_it_needs(
    tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    held = search(tmp_path / "fits", "gpt_tiny", strategy).cost.peak_memory_bytes
    arguments = ["search", str(SAMPLES / "gpt_tiny.onnx"), "--devices", "8", "--batch", "32", "--no-cache"]
    arguments += ["--strategy", strategy, "--out", str(tmp_path / "other"), "--force", "--memory-limit"]
    assert main([*arguments, f"{held}B"]) == 0
    capsys.readouterr()
    assert main([*arguments, f"{held - 1}B"]) == 4
    assert f"({held} bytes)" in capsys.readouterr().err


def test_without_its_pins_a_strategy_is_searched_within_the_limit(tmp_path: Path) -> None:
    held = search(tmp_path / "ddp", "gpt_tiny", "ddp").cost.peak_memory_bytes
    whole = load_model(SAMPLES / "gpt_tiny.onnx", batch=32)
    run = parse_strategy("ddp", devices=8, batch=32)
    request = Request(8, load_profile("a100-80"), Settings(True), execution=run, memory_limit=held // 2)
    assert request.configured is None
    assert make_plan(whole, request).peak_memory_bytes <= held // 2


def test_a_plan_is_not_priced_on_a_machine_that_cannot_run_it_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path, "gpt_tiny", "megatron:tp=2,offload=0.5,recompute=selective")
    arguments = ["evaluate", str(SAMPLES / "gpt_tiny.onnx"), "--plan", str(tmp_path / "plan.json")]
    assert main(arguments) == 0
    capsys.readouterr()
    assert main([*arguments, "--hardware", "ascend-910a"]) == 3
    assert "does not say how fast its host is reached" in capsys.readouterr().err


def test_a_plan_of_frozen_weights_takes_the_step_evaluated_and_says_so_to_launchers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, strategy = str(SAMPLES / "gpt_tiny.onnx"), "megatron:tp=2,micro_batch=2,frozen=true"
    job = ["--devices", "4", "--batch", "8"]
    assert main(["search", model, *job, "--strategy", strategy, "--no-cache", "--out", str(tmp_path)]) == 0
    plan = read_plan(tmp_path / "plan.json")
    assert plan.schedule.run["frozen"] is True
    capsys.readouterr()
    assert main(["evaluate", model, *job, "--strategy", strategy, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert main(["evaluate", model, "--plan", str(tmp_path), "--json"]) == 0
    read_back = json.loads(capsys.readouterr().out)
    assert plan.cost.step_time_s == evaluated["step_time_s"] == read_back["step_time_s"]
    assert plan.cost.peak_memory_bytes == evaluated["peak_memory_bytes"] == read_back["peak_memory_bytes"]
    assert main(["emit", str(tmp_path / "plan.json"), "--target", "megatron", "--out", str(tmp_path / "m")]) == 0
    assert "frozen=true" in capsys.readouterr().out
