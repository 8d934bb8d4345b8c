"""Plans of every kind of request are what is derived from them: nothing that a command may say is a false alarm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.frontends import load_model
from planner.planning import read_plan
from planner.verify.derive import differences

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
PROFILES = Path(__file__).resolve().parents[2] / "cost_models" / "profiles"
REQUESTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plain": ("mlp", ("--devices", "8")),
    "nodes": ("mlp", ("--devices", "4", "--nodes", "4")),
    "mesh": ("mlp", ("--devices", "8", "--mesh", "2x4", "--optimizer", "sgd", "--precision", "fp16")),
    "batch and time": ("mlp", ("--devices", "4", "--batch", "64", "--time-limit", "30")),
    "solver": ("mlp", ("--devices", "4", "--solver", "ilp", "--hardware", "alpha-beta")),
    "stages": ("gpt_tiny", ("--devices", "4", "--stages", "2", "--batch", "16")),
    "micro-batches": ("gpt_tiny", ("--devices", "2", "--micro-batches", "2")),
    "tight": ("mlp", ("--devices", "4", "--memory-limit", "1GiB", "--hardware", "ascend-910b")),
    "recomputed": ("gpt_tiny", ("--devices", "2", "--recompute", "blocks", "--stages", "2", "--micro-batches", "2")),
    "pins": ("mlp", ("--devices", "4", "--pin", "*.matmul n=x", "--pin", "rest=zero")),
    "target": ("mlp", ("--devices", "4", "--target", "mindspore", "--mode", "inference")),
    "strategy": ("gpt_tiny", ("--devices", "4", "--strategy", "megatron:pp=2,tp=2", "--batch", "8")),
}


def check(folder: Path) -> None:
    plan = read_plan(folder / "plan.json")
    graph = load_model(folder / "model.onnx", bind=plan.model.bind, batch=plan.model.batch)
    assert [str(d) for d in differences(plan, graph)] == []


def search(folder: Path, name: str, *options: str) -> Path:
    assert main(["search", str(SAMPLES / f"{name}.onnx"), "--no-cache", "--out", str(folder), *options]) == 0
    return folder


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_plan_as_it_was_asked_for(request_: str, tmp_path: Path) -> None:
    name, options = REQUESTS[request_]
    check(search(tmp_path, name, *options))


def test_the_next_best_plans(tmp_path: Path) -> None:
    search(tmp_path, "mlp", "--devices", "8", "--top-k", "3", "--hardware", "alpha-beta")
    found = list(tmp_path.rglob("plan.json"))
    for path in found:
        plan = read_plan(path)
        graph = load_model(SAMPLES / "mlp.onnx", bind=plan.model.bind, batch=plan.model.batch)
        assert [str(d) for d in differences(plan, graph)] == []


def test_a_profile_and_constraints_of_ones_own(tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    profile.write_text((PROFILES / "a100-80.toml").read_text(encoding="utf-8"), encoding="utf-8")
    constraints = tmp_path / "pins.json"
    entry = {"match": "layers.0.matmul", "strategy": {"n": "x"}}
    constraints.write_text(
        json.dumps({"schema": "planner.constraints/1", "operators": [entry], "rest": "data_parallel"}), encoding="utf-8"
    )
    own = ("--hardware", str(profile), "--constraints", str(constraints))
    check(search(tmp_path / "a", "mlp", "--devices", "4", *own))


def test_a_plan_given_as_constraints(tmp_path: Path) -> None:
    first = search(tmp_path / "a", "mlp", "--devices", "4", "--hardware", "alpha-beta")
    given = ("--constraints", str(first / "plan.json"))
    check(search(tmp_path / "b", "mlp", "--devices", "4", "--hardware", "alpha-beta", *given))
