"""Four gloo processes execute plans: they compute what one process computes, and communicate what is planned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder import build
from planner.cli.main import main
from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import Graph, Role
from planner.kernels.shards import Array
from planner.planning import PlanDocument, Request, describe, make_plan, write_plan
from planner.planning.constraints import parse_pin
from planner.planning.programs import program_of
from planner.pricing import Settings
from planner.verify.check import FORWARD_TOLERANCE, GRADIENT_TOLERANCE, relative_error
from planner.verify.data import random_tensors
from planner.verify.reference import gradients, run_ops
from planner.work.activity import fixed_operators
from tests.unit.fused_models import FUSED, fused_model

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

from planner.runtime.session import Session  # noqa: E402  they import torch
from planner.runtime.workers import Workers  # noqa: E402

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt", {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": 8}),
    "resnet50": ("resnet", {"layers": 50, "hidden": 16, "image": 32, "classes": 16, "batch": 8}),
    "moe": (
        "moe",
        {
            "layers": 2,
            "hidden": 32,
            "heads": 4,
            "kv_heads": 4,
            "ffn": 64,
            "experts": 4,
            "vocab": 128,
            "seq": 16,
            "batch": 8,
        },
    ),
    "fused": ("split_product", {}),
    "indexed": ("indexed_product", {}),
}
PLANS: dict[str, dict[str, tuple[str, ...]]] = {
    "gpt2": {
        "data": ("rest=data_parallel",),
        "zero": ("rest=zero",),
        "tensor": ("mesh=2x2", "*.c_attn.matmul b0=x n=y", "*.attn.c_proj.matmul b0=x k=y", "*.c_fc.matmul b0=x n=y",
                   "*.mlp.c_proj.matmul b0=x k=y", "rest=data_parallel"),
        "sequence": ("mesh=4", "transformer.h.?.add* layout=[_,x,_]"),
    },
    "resnet50": {
        "data": ("rest=data_parallel",),
        "zero": ("rest=zero",),
        "channels": ("mesh=2x2", "layer4.*.conv1.conv n=x o=y", "rest=data_parallel"),
    },
    "moe": {
        "data": ("rest=data_parallel",),
        "zero": ("rest=zero",),
        "experts": ("mesh=4", "*.experts.einsum* e=x", "rest=data_parallel"),
    },
    "fused": {
        "heads": ("mesh=4", "w1 stored=[_,x:3]", "w1 compute=[_,x:3]"),
        "stored as one": ("mesh=2x2", "w1 stored=[x,y]", "w1 compute=[_,y:3]"),
    },
    "indexed": {"heads": ("mesh=4", "w0 stored=[x:3,_]", "w0 compute=[x:3,_]")},
}  # fmt: skip
CASES = [(model, name) for model, plans in PLANS.items() for name in plans]


def plan(graph: Graph, pins: tuple[str, ...]) -> PlanDocument:
    constraints = reduce(add, map(parse_pin, pins)) if pins else None
    request = Request(4, load_profile("cpu"), Settings(training=True, precision="fp32"), constraints=constraints)
    return describe(make_plan(graph, request), bind={}, batch=None)


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers(4) as started:
        yield started


@pytest.fixture(scope="module")
def models(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[Path, Graph, dict[str, Array], dict[str, Array]]]:
    out = {}
    for name, (kind, sizes) in MODELS.items():
        path = tmp_path_factory.mktemp(name) / f"{name}.onnx"
        path.write_bytes(fused_model(kind) if kind in FUSED else build(kind, sizes).SerializeToString())
        graph = load_model(path)
        values = random_tensors(graph, 0)
        whole = run_ops(graph, values)
        truth = gradients(graph, values, whole, [p.name for p in graph.parameters])
        out[name] = (path, graph, {n: whole[n] for n in graph.outputs}, truth)
    return out


@pytest.mark.parametrize(("model", "name"), CASES)
def test_outputs_gradients_and_collectives_are_those_of_the_plan(
    workers: Workers, models: Any, model: str, name: str
) -> None:
    path, graph, whole, truth = models[model]
    made = plan(graph, PLANS[model][name])
    session = Session(workers, path, made)
    found = session.results()
    for n, value in whole.items():
        assert relative_error(found.outputs[n], value) < FORWARD_TOLERANCE, n
    floor = 1e-3 * float(np.median([np.abs(g).max() for g in truth.values()]))
    assert set(found.gradients) == set(truth)
    for n, gradient in truth.items():
        assert relative_error(found.gradients[n], gradient, floor) < GRADIENT_TOLERANCE, n
    traffic = session.traffic()
    assert traffic.executed == traffic.planned
    assert traffic.executed
    # All bytes of the plan, in at most as many collectives: parameters and their gradients go together.
    program, fixed = program_of(made, graph), fixed_operators(graph)
    once = {t for op in graph.ops if op.name in fixed for t in op.outputs}
    once |= {t.name for t in graph.tensors.values() if t.role is Role.CONSTANT}
    moves = [m for m in program.redistributions() if m.gradient or m.tensor not in once]
    listed = program.moved(moves, {m.tensor: graph.tensors[m.tensor].bytes for m in moves})
    assert {kind: size for kind, (_, size) in traffic.executed.items()} == {k: t.bytes for k, t in listed.items()}
    assert all(count <= listed[kind].count for kind, (count, _) in traffic.executed.items())
    session.close()


def test_the_command_runs_checks_and_reports(tmp_path: Path, models: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, graph, _, _ = models["gpt2"]
    write_plan(plan(graph, PLANS["gpt2"]["tensor"]), tmp_path / "plan.json")
    assert main(["run", str(tmp_path / "plan.json"), str(path), "--check", "--json", "--steps", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["collectives"] == found["planned"]
    assert len(found["step_seconds"]) == 2
    assert max(found["errors"].values()) < GRADIENT_TOLERANCE


def test_torchrun_starts_the_same(tmp_path: Path, models: Any) -> None:
    path, graph, _, _ = models["gpt2"]
    write_plan(plan(graph, PLANS["gpt2"]["tensor"]), tmp_path / "plan.json")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "-m", "planner", "run"]
    done = subprocess.run(
        [*command, str(tmp_path / "plan.json"), str(path), "--check", "--json"],
        capture_output=True, text=True, check=False, timeout=300, env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["ok"]


def test_another_model_is_refused_before_anything_starts(
    tmp_path: Path, models: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    write_plan(plan(models["gpt2"][1], ("rest=data_parallel",)), tmp_path / "plan.json")
    assert main(["run", str(tmp_path / "plan.json"), str(models["moe"][0])]) == 3
    assert "the model given is another one" in capsys.readouterr().err
