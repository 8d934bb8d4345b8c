"""An existing plan priced as it stands: at home to the last digit, elsewhere by the other machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.clock import held_of_plan, play
from planner.cost_models import load_profile
from planner.errors import InputError, UsageError
from planner.evaluate.plan import evaluate_plan
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph
from planner.lowering import lower
from planner.planning import PlanDocument, Planned, Request, describe, make_plan, write_plan
from planner.planning.breakdown import breakdown
from planner.planning.constraints import parse_constraints
from planner.planning.least_memory import smallest_hubs
from planner.planning.planner import on_nodes
from planner.planning.recall import complete
from planner.planning.restore import restore_part
from planner.pricing import Settings
from planner.search.evaluate import evaluate, peak_memory
from planner.search.problem import FORBIDDEN
from tests.unit.semantics_model import transformer

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
A100 = load_profile("a100-80")
GRAPH = import_bytes(transformer())
Recompute = Literal["none", "blocks"]


@lru_cache
def sample(name: str) -> Graph:
    return load_model(SAMPLES / f"{name}.onnx")


@lru_cache
def searched(name: str, devices: int, recompute: Recompute = "none", training: bool = True) -> Planned:
    return make_plan(sample(name), Request(devices, A100, Settings(training), recompute=recompute))


def loader(name: str) -> Callable[[int | None, Mapping[str, int]], Graph]:
    return lambda batch, bind: load_model(SAMPLES / f"{name}.onnx", batch=batch, bind=bind)


def written(planned: Planned, folder: Path, **changes: Any) -> Path:
    """The plan as a file, with top-level keys replaced by `changes`."""
    document = describe(planned, bind={}, batch=None)
    path = folder / "plan.json"
    write_plan(document.model_copy(update=changes), path)
    return path


def agrees(found: dict[str, Any], planned: Planned) -> None:
    assert found["objective_s"] == planned.objective_s
    assert found["step_time_s"] == planned.step_time_s
    assert found["breakdown_s"] == planned.parts.seconds(A100.price_resolution_s)
    assert found["peak_memory_bytes"] == planned.peak_memory_bytes
    assert found["memory_bytes"] == planned.memory.parts
    assert sum(found["memory_bytes"].values()) == found["peak_memory_bytes"]
    assert all(size >= 0 for size in found["memory_bytes"].values())


@pytest.mark.parametrize("recompute", ["none", "blocks"])
@pytest.mark.parametrize(
    ("name", "devices"), [("mlp", 4), ("mlp", 16), ("gpt2_small", 4), ("gpt2_small", 16), ("resnet18_tiny", 4)]
)
def test_at_home_a_plan_costs_what_its_search_said(
    name: str, devices: int, recompute: Recompute, tmp_path: Path
) -> None:
    planned = searched(name, devices, recompute)
    found = evaluate_plan(written(planned, tmp_path), loader(name), A100)
    agrees(found, planned)
    assert found["peak_memory_bytes"] == planned.peak_memory_bytes
    assert found["devices"] == devices
    assert found["batch"] == 8
    assert found["memory_limit_bytes"] == planned.memory_limit
    assert found["fits"]
    assert found["planned"]["objective_s"] == found["objective_s"]
    assert ("recomputed" in found["configuration"]) == (recompute == "blocks")


@pytest.mark.slow
def test_a_convolutional_plan_on_sixteen_devices(tmp_path: Path) -> None:
    planned = searched("resnet18_tiny", 16)
    agrees(evaluate_plan(written(planned, tmp_path), loader("resnet18_tiny"), A100), planned)


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny"])
def test_plans_for_inference(name: str, tmp_path: Path) -> None:
    planned = searched(name, 4, training=False)
    found = evaluate_plan(written(planned, tmp_path), loader(name), A100)
    agrees(found, planned)
    assert found["memory_bytes"]["gradients"] == found["memory_bytes"]["optimizer"] == 0


def test_parts_of_memory_are_those_of_the_optimizer(tmp_path: Path) -> None:
    """Adam in bf16 keeps 2 bytes of a weight and 4 + 8 of its state, SGD in fp32 4; gradients are there throughout."""
    for setting, ratios in ((Settings(True), (2, 2, 12)), (Settings(True, "fp32", "sgd"), (4, 4, 0))):
        planned = make_plan(sample("mlp"), Request(1, A100, setting))
        memory = evaluate_plan(written(planned, tmp_path), loader("mlp"), A100)["memory_bytes"]
        weights = sum(t.elements for t in sample("mlp").parameters)
        assert tuple(memory[k] for k in ("weights", "gradients", "optimizer")) == tuple(weights * r for r in ratios)


@lru_cache
def on_mesh(mesh: DeviceMesh, recompute: Recompute, training: bool) -> Planned:
    return make_plan(GRAPH, Request(mesh.devices, A100, Settings(training), (mesh,), recompute=recompute))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32 - 1), st.sampled_from([(4,), (2, 2), (2, 4)]), st.booleans(), st.booleans())
def test_any_valid_choice_is_found_again_in_its_file(
    tmp_path: Path, seed: int, mesh: tuple[int, ...], training: bool, recompute: bool
) -> None:
    """Plans nobody would search for: a third of the operators in states drawn by lot."""
    base = on_mesh(DeviceMesh.of(*mesh), "blocks" if recompute else "none", training)
    rng, priced = np.random.default_rng(seed), base.priced
    kept = {}
    for node in priced.op_nodes.values():
        allowed = np.flatnonzero(priced.problem.nodes[node].costs < FORBIDDEN)
        kept[node] = rng.permutation(allowed)[: 1 if rng.random() < 1 / 3 else None]
    choice = complete(priced.problem, kept)
    assume(choice is not None)
    assert choice is not None
    assignment = priced.decode(choice)
    program = lower(GRAPH, base.mesh, priced.rules, priced.active, assignment)
    planned = replace(
        base,
        solution=replace(base.solution, choice=choice, cost=evaluate(priced.problem, choice)),
        assignment=assignment,
        program=program,
        parts=breakdown(priced, choice, program),
        timeline=play(priced, choice, program),
        memory=held_of_plan(priced, program),
    )
    agrees(evaluate_plan(written(planned, tmp_path), lambda batch, bind: GRAPH, A100), planned)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_lean_choice_costs_and_holds_no_more(seed: int) -> None:
    planned = searched("bert_tiny", 4)
    problem, rng = planned.priced.problem, np.random.default_rng(seed)
    choice = list(planned.solution.choice)
    for node, hub in planned.priced.hubs.values():  # hubs that hold more than is read, where that is allowed
        other = choice.copy()
        other[node] = int(rng.integers(len(hub.states)))
        choice = other if evaluate(replace(problem, limit=None), other) is not None else choice
    thin = smallest_hubs(planned.priced, choice)
    assert (evaluate(problem, thin) or 0) <= (evaluate(problem, choice) or 0)
    assert peak_memory(problem, thin) <= peak_memory(problem, choice)
    assert smallest_hubs(planned.priced, thin) == thin


def test_a_plan_pinned_worse_costs_more(tmp_path: Path) -> None:
    best = searched("gpt2_small", 4)
    pins = parse_constraints("schema: planner.constraints/1\nrest: replicated\n", "pins")
    worse = make_plan(sample("gpt2_small"), Request(4, A100, Settings(True), constraints=pins))
    found = evaluate_plan(written(worse, tmp_path), loader("gpt2_small"), A100)
    agrees(found, worse)
    assert found["objective_s"] > best.objective_s
    assert found["step_time_s"] > best.step_time_s
    assert found["collectives"] == {}


def test_another_machine_gives_other_seconds_of_the_same_bytes(tmp_path: Path) -> None:
    path = written(searched("gpt2_small", 4), tmp_path)
    home, h100, v100 = (evaluate_plan(path, loader("gpt2_small"), load_profile(p)) for p in ("a100-80", "h100", "v100"))
    assert h100["step_time_s"] < home["step_time_s"] < v100["step_time_s"]
    assert h100["hardware"] == "h100"
    assert h100["planned"] == home["planned"]
    for key in ("memory_bytes", "collectives", "configuration", "batch"):
        assert home[key] == h100[key] == v100[key]
    assert v100["memory_limit_bytes"] < home["memory_limit_bytes"]


def test_elsewhere_a_plan_costs_at_least_what_the_search_finds_there(tmp_path: Path) -> None:
    path = written(searched("gpt2_small", 4), tmp_path)
    for name in ("h100", "v100", "l40s"):
        there = make_plan(sample("gpt2_small"), Request(4, load_profile(name), Settings(True)))
        assert evaluate_plan(path, loader("gpt2_small"), load_profile(name))["objective_s"] >= there.bound_s


def test_servers_are_as_full_as_planned(tmp_path: Path) -> None:
    """`planner search --nodes 4`: one device per server, so that collectives cross the network."""
    spread = make_plan(sample("gpt2_small"), Request(4, on_nodes(A100, 4, 4), Settings(True)))
    agrees(evaluate_plan(written(spread, tmp_path), loader("gpt2_small"), A100), spread)


def test_the_memory_limit(tmp_path: Path) -> None:
    free = searched("gpt2_small", 4)
    tight = make_plan(
        sample("gpt2_small"),
        Request(4, A100, Settings(True), memory_limit=free.peak_memory_bytes - 1, recompute="none"),
    )
    found = evaluate_plan(written(tight, tmp_path), loader("gpt2_small"), A100)
    agrees(found, tight)
    assert found["memory_limit_bytes"] == free.peak_memory_bytes - 1
    less = evaluate_plan(written(tight, tmp_path), loader("gpt2_small"), A100, memory_limit=2**20)
    assert (less["memory_limit_bytes"], less["fits"]) == (2**20, False)
    assert evaluate_plan(written(tight, tmp_path), loader("gpt2_small"), load_profile("alpha-beta"))["fits"]


def test_restoring_gives_the_program_of_the_search(tmp_path: Path) -> None:
    planned = searched("mlp", 4, "blocks")
    document = describe(planned, bind={}, batch=None)
    restored = restore_part(document, sample("mlp"), A100, "plan")
    assert restored.program.instructions == planned.program.instructions
    assert evaluate(restored.priced.problem, restored.choice) == planned.solution.cost


def test_a_plan_for_another_batch_is_priced_at_its_own(tmp_path: Path) -> None:
    graph = load_model(SAMPLES / "mlp.onnx", batch=32)
    planned = make_plan(graph, Request(4, A100, Settings(True)))
    path = tmp_path / "plan.json"
    write_plan(describe(planned, bind={}, batch=32), path)
    found = evaluate_plan(path, loader("mlp"), A100)
    agrees(found, planned)
    assert found["batch"] == 32


# Errors


def refused(path: Path, expected: str, name: str = "mlp", **more: Any) -> None:
    profile = load_profile(more.pop("hardware", "a100-80"))
    with pytest.raises((InputError, UsageError), match=expected) as e:
        evaluate_plan(path, loader(name), profile, **more)
    assert str(path) in str(e.value)


def test_what_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    refused(path, "cannot be read")
    path.write_text("{")
    refused(path, "is not JSON")
    path.write_text('{"schema": "planner.plan/0"}')
    refused(path, "expected schema 'planner.plan/1', found 'planner.plan/0'")
    path.write_text('{"schema": "planner.plan/1"}')
    refused(path, "at model: Field required")


def test_the_plan_of_another_model(tmp_path: Path) -> None:
    refused(
        written(searched("mlp", 4), tmp_path), r"at operators: expected the 71 operators .* found \d+", "resnet18_tiny"
    )


def test_another_batch_names_the_input(tmp_path: Path) -> None:
    path = written(searched("mlp", 4), tmp_path)
    with pytest.raises(InputError, match=r"at inputs.features: expected shape \[8, 64\] as planned, found \[32, 64\]"):
        evaluate_plan(path, lambda batch, bind: load_model(SAMPLES / "mlp.onnx", batch=32), A100)


def test_other_devices(tmp_path: Path) -> None:
    path = written(searched("mlp", 4), tmp_path)
    refused(path, "at cluster.devices: expected 8 as of --devices, found 4", devices=8)
    assert evaluate_plan(path, loader("mlp"), A100, devices=4)["devices"] == 4


def test_a_mesh_that_the_profile_has_no_prices_for(tmp_path: Path) -> None:
    planned = make_plan(sample("mlp"), Request(8, A100, Settings(True), (DeviceMesh.of(2, 2, 2),)))
    path = written(planned, tmp_path)
    agrees(evaluate_plan(path, loader("mlp"), A100), planned)
    refused(path, "at meshes.m0.axes: expected at most the 2 mesh axes .*alpha-beta", hardware="alpha-beta")


@lru_cache
def in_the_plane(name: str) -> Planned:
    return make_plan(sample(name), Request(4, A100, Settings(True), (DeviceMesh.of(2, 2),)))


def broken(folder: Path, change: Callable[[dict[str, Any]], None], name: str = "gpt2_small") -> Path:
    data = json.loads(describe(in_the_plane(name), bind={}, batch=None).model_dump_json(by_alias=True))
    change(data)
    path = folder / "plan.json"
    path.write_text(PlanDocument.model_validate(data).model_dump_json(by_alias=True))
    return path


def _drop_moves(d: dict[str, Any]) -> None:
    d["redistributions"] = []


def _mesh(d: dict[str, Any]) -> None:
    d["meshes"]["m0"]["axes"][0]["size"] = 8


def _digest(d: dict[str, Any]) -> None:
    d["model"]["digest"] = "0" * 64


def _blocks(d: dict[str, Any]) -> None:
    d["schedule"]["recompute"] = [[next(iter(d["operators"]))]]


def _parameter(d: dict[str, Any]) -> None:
    d["parameters"].popitem()


def _role(d: dict[str, Any]) -> None:
    operator = next(iter(d["operators"].values()))
    operator["strategy"] = dict.fromkeys(operator["strategy"], "split:nothing")


def _axis(d: dict[str, Any]) -> None:
    next(iter(d["operators"].values()))["strategy"] = {}


def _tensor(d: dict[str, Any]) -> None:
    d["tensors"].popitem()


def _stored(d: dict[str, Any]) -> None:
    first = next(iter(d["parameters"].values()))
    first["stored"]["dims"] = [["y"] if dims != ["y"] else ["x"] for dims in first["stored"]["dims"][:1]] + [[]]


def _unknown_axis(d: dict[str, Any]) -> None:
    first = next(iter(d["parameters"]))
    d["parameters"][first]["stored"]["dims"][0] = d["tensors"][first]["layout"]["dims"][0] = ["q"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_drop_moves, "where it is not"),
        (_mesh, "at cluster.devices: expected 16, as the stages' meshes have, found 4"),
        (_digest, "at model.digest: expected the model that was planned"),
        (_blocks, "at schedule.recompute: expected the blocks of equal layers"),
        (_parameter, "at parameters: expected"),
        (_role, "operator .*: .*split:nothing"),
        (_axis, "its strategy cannot be understood"),
        (_tensor, "at tensors: expected"),
        (_stored, r"at parameters.transformer.wte.weight.stored: expected .* as in tensors, found \["),
        (_unknown_axis, "axis 'q' is not one of the mesh"),
    ],
)
def test_a_plan_that_contradicts_itself(
    change: Callable[[dict[str, Any]], None], expected: str, tmp_path: Path
) -> None:
    refused(broken(tmp_path, change), expected, "gpt2_small")


# The command line


def run(*arguments: object) -> int:
    try:
        return main(["evaluate", *map(str, arguments)])
    except SystemExit as e:
        return int(e.code or 0)


@pytest.mark.parametrize(
    "options",
    [
        ("--stages", "2", "--micro-batches", "4"),
        ("--micro-batches", "4"),
        ("--stages", "2", "--micro-batches", "2", "--recompute", "blocks"),
        ("--strategy", "megatron:tp=2,pp=2,micro_batch=2,recompute=full"),
        ("--strategy", "fsdp:micro_batch=2"),
        ("--strategy", "ddp:loss=softmax,attention=unfused"),
    ],
)
def test_plans_in_parts_and_of_known_configurations_cost_what_their_search_said(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the plan's own machine, which need not be named."""
    model = str(SAMPLES / "gpt_tiny.onnx")
    command = ["search", model, "--devices", "8", "--batch", "16", "--hardware", "h100", "--no-cache", "--json"]
    assert main([*command, *options, "--out", str(tmp_path)]) == 0
    said = json.loads(capsys.readouterr().out)
    cost = json.loads((tmp_path / "plan.json").read_text())["cost"]
    capsys.readouterr()
    assert run(model, "--plan", tmp_path / "plan.json", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["hardware"], found["devices"], found["batch"]) == ("h100", 8, 16)
    for key in ("step_time_s", "objective_s", "peak_memory_bytes"):
        assert found[key] == cost[key]
    for key in ("step_time_interval_s", "extrapolated"):
        assert found[key] == said[key]
    assert found["in_words"] == said["in_words"].removesuffix(" (--details)")
    assert sum(found["step_parts_s"].values()) == pytest.approx(found["step_time_s"], rel=1e-9)
    assert len(found["stages"]) in (0, 1, 2)
    assert run(model, "--plan", tmp_path / "plan.json", "--batch", "16") == 0  # of the step, not of a micro-batch
    assert "as planned" in capsys.readouterr().out


def test_the_command_prices_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned = searched("gpt2_small", 4)
    path, model = written(planned, tmp_path), SAMPLES / "gpt2_small.onnx"
    assert run(model, "--plan", path, "--json", "--out", tmp_path / "out") == 0
    text = capsys.readouterr().out
    found = json.loads(text)
    agrees(found, planned)
    assert found["schema"] == "planner.evaluation/1"
    assert found["strategy"] == str(path)
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text()) == found

    assert run(model, "--plan", path, "--memory-limit", "1MiB") == 4
    told = capsys.readouterr().out
    assert "on 4 x a100-80, batch 8\n" in told
    assert f"\n  plan           {found['in_words']}\n  configuration  {found['configuration']}\n" in told
    assert f"objective      {planned.objective_s:.4g} s" in told
    assert "DOES NOT FIT" in told
    assert "all-reduce" in told
    assert f"as planned     {planned.step_time_s:.4g} s" in told


def test_a_bound_model_is_bound_as_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = SAMPLES / "mlp.onnx"
    assert main(["search", str(model), "--devices", "4", "--batch", "16", "--out", str(tmp_path), "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert run(model, "--plan", tmp_path / "plan.json", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["batch"] == 16
    for key in ("objective_s", "step_time_s", "memory_limit_bytes", "collectives"):
        assert found[key] == planned[key]


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--devices", "8"], 2, "at cluster.devices: expected 8 as of --devices, found 4"),
        (["--precision", "fp32"], 2, "--precision goes with --strategy"),
        (["--optimizer", "sgd"], 2, "--optimizer goes with --strategy"),
        (["--batch", "16"], 3, "at inputs.features"),
        (["--hardware", "no-such"], 3, "no-such"),
        (["--strategy", "ddp"], 2, "--strategy contradicts --plan"),
    ],
)
def test_what_the_command_refuses(
    arguments: list[str], status: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(searched("mlp", 4), tmp_path)
    assert run(SAMPLES / "mlp.onnx", "--plan", path, *arguments) == status
    assert message in capsys.readouterr().err
