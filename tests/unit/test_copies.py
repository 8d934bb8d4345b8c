"""Micro-batches that pass together: priced alike everywhere, executed, drawn, emitted, and searched where they pay."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.builder import build
from planner.cli.main import main
from planner.clock import Configuration, predict
from planner.cost_models import load_profile
from planner.errors import UsageError
from planner.evaluate import traced_as
from planner.evaluate.configured import program_of_configuration
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning import PlanDocument
from planner.planning.schemes import in_words, parse_strategy, spelled
from planner.report.interleaved import interleaved
from planner.report.timeline import pipeline_run
from planner.report.trace import trace_document
from planner.targets import Target
from planner.trace import Workload
from planner.uniform import Sample, Space, best_of, configurations
from planner.uniform.space import levels, schedules

MACHINE = load_profile("ascend-910b")
SIZES = {"layers": 4, "hidden": 2048, "heads": 16, "vocab": 512, "seq": 2048, "attention": "fused"}
SMALL = {"layers": 4, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8}
TOGETHER = "megatron:tp=2,pp=2,micro_batch=2,copies=2,sp=false,zero=0"


@cache
def graph_of(batch: int) -> Graph:
    return import_bytes(build("gpt", {**SIZES, "batch": batch}).SerializeToString(), name="gpt")


@cache
def workload_of(layout: str) -> Workload:
    c = parse_strategy(f"megatron:{layout}", devices=8, batch=16)
    return traced_as(c, program_of_configuration(graph_of(c.micro_batch * c.dp), c, MACHINE))


def step(layout: str, more: str = "") -> tuple[float, float]:
    """Seconds and bytes of a step on eight devices, batch 16."""
    c = parse_strategy(f"megatron:{layout}{more}", devices=8, batch=16)
    found = predict(workload_of(layout), c, MACHINE)
    return found.step_time_s, found.allocated_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("copies")
    (out / "gpt.onnx").write_bytes(build("gpt", {**SMALL, "batch": 16}).SerializeToString())
    options = ["--devices", "4", "--batch", "16", "--hardware", "ascend-910b", "--strategy", TOGETHER, "--no-cache"]
    assert main(["search", str(out / "gpt.onnx"), *options, "--out", str(out / "plan")]) == 0
    return out


def plan_of(folder: Path) -> PlanDocument:
    return PlanDocument.model_validate_json((folder / "plan" / "plan.json").read_bytes())


def test_copies_win_where_tensor_parallel_ranks_exchange_much() -> None:
    alone, held = step("tp=8,micro_batch=1")
    together, more = step("tp=8,micro_batch=1", ",copies=2")
    assert together < 0.95 * alone
    assert more > held, "both copies' activations are held at once"


def test_copies_lose_where_there_is_nothing_to_hide() -> None:
    """Then only their gradients' sum is left of them, and, with stages, a longer way to fill the pipeline."""
    assert step("tp=1,micro_batch=1", ",copies=2")[0] > step("tp=1,micro_batch=1")[0]
    assert step("tp=1,pp=4,micro_batch=1", ",copies=2")[0] > step("tp=1,pp=4,micro_batch=1")[0]


def test_copies_never_hide_more_than_is_sent() -> None:
    c = parse_strategy("megatron:tp=8,micro_batch=1", devices=8, batch=16)
    parts = predict(workload_of("tp=8,micro_batch=1"), c, MACHINE).breakdown
    for n in (2, 4, 8, 16):
        saved = parts["compute"] + parts["tensor_collectives"] - step("tp=8,micro_batch=1", f",copies={n}")[0]
        assert saved <= parts["tensor_collectives"]


def test_copies_divide_the_micro_batches() -> None:
    with pytest.raises(UsageError, match=r"copies=3: expected a divisor of the 16 micro-batches"):
        parse_strategy("megatron:tp=8,micro_batch=1,copies=3", devices=8, batch=16)


def test_copies_are_spelled_and_said() -> None:
    c = parse_strategy(TOGETHER, devices=4, batch=16)
    assert (c.micro_batches, c.copies, c.passes) == (8, 2, 4)
    assert parse_strategy(spelled(c), devices=4, batch=16) == c
    assert "8 micro-batches of 2, 2 at once" in in_words(c)


def test_zero_2_scatters_once_where_one_pass_has_all_micro_batches() -> None:
    assert not Configuration(dp=8, zero=2, micro_batches=2, copies=2).scatters_every_pass
    assert Configuration(dp=8, zero=2, micro_batches=4, copies=2).scatters_every_pass


def test_the_plan_is_executed_and_priced_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "gpt.onnx")
    capsys.readouterr()
    assert main(["verify", str(folder / "plan"), model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["micro_batches"]) == ("ok", 8)
    cost = plan_of(folder).cost
    known = ["--strategy", TOGETHER, "--hardware", "ascend-910b", "--devices", "4", "--batch", "16"]
    for how in (["--plan", str(folder / "plan" / "plan.json")], known):
        assert main(["evaluate", model, *how, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert (again["step_time_s"], again["peak_memory_bytes"]) == (cost.step_time_s, cost.peak_memory_bytes)


def test_the_picture_shows_one_copy_beside_the_other(folder: Path) -> None:
    plan = plan_of(folder)
    drawn = interleaved(plan)
    assert {e.copy for e in drawn} == {0, 1}
    alone = sum(e.units for e in drawn)
    assert max(e.begin + e.units for e in drawn) < alone
    for stream in ("compute", "collectives"):
        ordered = sorted((e for e in drawn if e.stream == stream), key=lambda e: e.begin)
        assert all(a.begin + a.units <= b.begin for a, b in pairwise(ordered)), "one at a time"
    named = [e["args"]["name"] for e in trace_document(plan)["traceEvents"] if e["name"] == "thread_name"]
    assert {"compute of copy 1", "collectives of copy 0"} <= set(named)
    run = pipeline_run(plan)
    assert run is not None
    assert {p[2] for p in run.passes} == {0, 2, 4, 6}, "pairs of micro-batches"


def test_frameworks_are_told_of_copies(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = str(folder / "plan")
    for target in ("mindspore", "mindformers", "megatron"):
        assert main(["emit", plan, "--target", target, "--out", str(folder / target)]) == 0, target
    script = (folder / "mindspore" / "parallel.py").read_text()
    assert "copies=2" in script
    assert "MICRO_BATCHES = 4" in script
    settings = yaml.safe_load((folder / "mindformers" / "mindformers.yaml").read_text())
    assert settings["micro_batch_interleave_num"] == 2
    assert settings["parallel_config"]["micro_batch_num"] == 4
    assert "copies=2" in capsys.readouterr().out, "Megatron-LM's launcher is not told, and the message says so"


def _asked(target: Target, hardware: str) -> Any:
    from planner.requests.history import History
    from planner.requests.search import SearchRequest
    from planner.requests.uniform import Uniforms
    from planner.search.control import Control

    request = SearchRequest(Path("gpt.onnx"), "8", target=target)
    return Uniforms(request, graph_of(16), 8, load_profile(hardware), Control(None), History()).space.copies


def test_copies_are_searched_for_frameworks_that_have_them() -> None:
    assert _asked("mindspore", "a100-80") == (1, 2, 4)
    assert _asked("any", "ascend-910b") == (1, 2, 4)
    assert _asked("any", "h100") == (1,)
    assert _asked("megatron", "ascend-910b") == (1,)


def test_no_configuration_with_copies_is_faster_than_the_best() -> None:
    graph = import_bytes(build("gpt", {**SIZES, "layers": 3, "batch": 8}).SerializeToString(), name="gpt")
    sample = Sample(graph, MACHINE)
    space = Space(4, 8, sample.layers, experts=False, copies=(1, 2))
    found = best_of(sample, space, None).best[0]
    every = [v for c in configurations(space, MACHINE) for s in schedules(space, c) for v in levels(space, s)]
    assert any(c.copies == 2 for c in every)
    steps = {c: predict(sample.workload(c), c, MACHINE).step_time_s for c in every}
    assert found.prediction.step_time_s == min(steps.values())
