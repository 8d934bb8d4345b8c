"""Operators laid out one by one inside the micro-batches and stages of a known configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.clock import predict
from planner.cost_models import load_profile
from planner.frontends import import_bytes, load_model
from planner.ir import Graph
from planner.planning import read_plan
from planner.planning.schemes import parse_strategy
from planner.search.control import Control
from planner.uniform import Sample
from planner.uniform.inside import inside
from tests.unit.fused_models import fused_model

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
DEVICES, BATCH = 8, 32
STRATEGIES = (
    "zero1:micro_batch=2", "ddp:micro_batch=2", "zero2:micro_batch=1", "zero3:micro_batch=2",
    "megatron:tp=2,pp=2,micro_batch=2", "megatron:cp=2,micro_batch=2", "megatron:tp=2,micro_batch=4,recompute=full",
)  # fmt: skip


def deep_gpt(path: Path) -> Path:
    """Five blocks, of which three are laid out, with a vocabulary that is worth dividing otherwise."""
    sizes = {"layers": 5, "hidden": 64, "heads": 4, "vocab": 4096, "seq": 64, "batch": BATCH}
    path.write_bytes(build("gpt", sizes).SerializeToString())
    return path


def sample_of(graph: Graph, machine: str) -> Sample:
    return Sample(graph, load_profile(machine))


@pytest.mark.parametrize("model", ["gpt_tiny", "moe_tiny", "mlp"])
@pytest.mark.parametrize("room", [1.0, 1.5])
def test_it_is_faster_and_fits_or_nothing_is_found(model: str, room: float) -> None:
    sample = sample_of(load_model(SAMPLES / f"{model}.onnx", batch=BATCH), "ascend-910b")
    for strategy in STRATEGIES:
        if model == "mlp" and strategy.startswith("megatron"):
            continue
        c = parse_strategy(strategy, devices=DEVICES, batch=BATCH)
        own = predict(sample.workload(c), c, sample.profile)
        limit = round(own.allocated_bytes * room)
        found = inside(sample, c, limit, "--strategy S --space operators", Control(None))
        if found is not None:
            assert found.prediction.step_time_s < own.step_time_s
            assert found.prediction.allocated_bytes <= limit


def test_it_finds_that_heads_may_be_exchanged_for_positions() -> None:
    """Where the ring of keys and values takes longer than what it hides beside, as on slow links."""
    sizes = {"layers": 5, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 8192, "vocab": 32000, "seq": 8192}
    model = build("llama", {**sizes, "batch": BATCH, "attention": "fused"}).SerializeToString()
    sample = sample_of(import_bytes(model, name="llama"), "ascend-910b")
    c = parse_strategy("megatron:cp=8,micro_batch=1", devices=DEVICES, batch=BATCH)
    found = inside(sample, c, None, "x", Control(None))
    assert found is not None
    assert found.prediction.step_time_s < predict(sample.workload(c), c, sample.profile).step_time_s * 0.98
    exchanged = c.with_(context="all-to-all")
    prescribed = predict(sample.workload(exchanged), exchanged, sample.profile).step_time_s
    assert found.prediction.step_time_s == pytest.approx(prescribed, rel=0.01)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_plan_takes_what_the_sample_says_and_is_verified(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of five blocks: pins of those that are laid out hold for those they stand for."""
    model = deep_gpt(tmp_path / "model.onnx")
    sample = sample_of(import_bytes(model.read_bytes(), name="model"), "h100")
    c = parse_strategy(strategy, devices=DEVICES, batch=BATCH)
    found = inside(sample, c, None, "x", Control(None))
    own = predict(sample.workload(c), c, sample.profile).step_time_s
    options = [
        str(model),
        "--devices",
        str(DEVICES),
        "--batch",
        str(BATCH),
        "--hardware",
        "h100",
        "--no-cache",
        "--json",
    ]
    out = tmp_path / "plan"
    assert main(["search", *options, "--strategy", strategy, "--space", "operators", "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    expected = own if found is None else found.prediction.step_time_s
    assert said["step_time_s"] == pytest.approx(expected, rel=1e-9)
    plan = read_plan(out / "plan.json")
    assert plan.search.request is not None
    assert (plan.search.request.strategy, plan.search.request.space) == (strategy, "operators")
    assert main(["verify", str(out / "plan.json"), str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["evaluate", "--plan", str(out / "plan.json"), str(model), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("target", ["any", "torch"])
def test_a_search_of_the_whole_space_ends_with_it(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan is the one that --strategy with --space operators makes, byte for byte, and is not called optimal."""
    model = deep_gpt(tmp_path / "model.onnx")
    options = [str(model), "--devices", "8", "--batch", "32", "--hardware", "h100", "--no-cache", "--target", target]
    assert (
        main(["search", *options, "--space", "whole", "--micro-batches", "2", "--json", "--out", str(tmp_path / "a")])
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["step_time_s"] < said["uniform"]["step_time_s"]
    assert said["status"] == "feasible"
    strategy = said["uniform"]["strategy"]
    assert main(["search", *options, "--strategy", strategy, "--space", "operators", "--out", str(tmp_path / "b")]) == 0
    assert (tmp_path / "a" / "plan.json").read_bytes() == (tmp_path / "b" / "plan.json").read_bytes()
    assert main(["search", *options, "--space", "whole", "--micro-batches", "2", "--out", str(tmp_path / "c")]) == 0
    assert "operators   laid out one by one within it: " in capsys.readouterr().out


def test_a_target_that_takes_degrees_alone_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(SAMPLES / "gpt_tiny.onnx"), "--devices", "4", "--batch", "8", "--strategy", "zero1"]
    assert main(["search", *arguments, "--space", "operators", "--target", "megatron", "--no-cache"]) != 0
    assert "--target megatron takes degrees of parallelism" in capsys.readouterr().err


def test_without_a_loss_it_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        str(SAMPLES / "mlp.onnx"),
        "--devices",
        "4",
        "--batch",
        "8",
        "--strategy",
        "ddp",
        "--space",
        "operators",
    ]
    assert main(["search", *arguments, "--mode", "inference", "--no-cache"]) != 0
    assert "operators are searched inside of configurations of training" in capsys.readouterr().err


def test_a_target_that_splits_dimensions_as_one_gets_no_pins_in_parts() -> None:
    sample = sample_of(import_bytes(fused_model("split_product", BATCH, 2048, 1024), name="fused"), "a100-80")
    c = parse_strategy("megatron:tp=4,micro_batch=1", devices=4, batch=BATCH)
    found = {t: inside(sample, c, None, "x", Control(None), t) for t in ("any", "dtensor")}  # type: ignore[arg-type]
    in_parts = {t: sum(bool(p.stored and p.stored.parts) for p in f.pins.parameters) for t, f in found.items() if f}
    assert in_parts == {"any": 2, "dtensor": 0}
