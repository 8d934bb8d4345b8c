"""Operators that PyTorch would not run are named before anything is started, and refused on GPUs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from planner.errors import UsageError
from planner.frontends import load_model
from planner.planning.programs import program_of
from tests.runtime.test_shared_kernels import model

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.hosted import hosted, hosted_text  # noqa: E402  they import torch
from planner.runtime.launch import run_plan  # noqa: E402
from tests.runtime.test_programs import SAMPLES, plan  # noqa: E402


@pytest.mark.parametrize("name", ["gpt_tiny", "llama_tiny", "resnet18_tiny", "vit_tiny", "mlp"])
def test_sample_graphs_run_without_the_host(name: str) -> None:
    graph = load_model(SAMPLES / f"{name}.onnx")
    for pins in ((), ("rest=data_parallel",)):
        assert not hosted(program_of(plan(graph, pins, 2), graph))


def test_operators_on_the_host_are_named_and_refused_on_gpus(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model("CumProd", ((2,),), {}), path)
    graph = load_model(path)
    made = plan(graph, ("type=CumProd d2=2",), 2)
    found = hosted(program_of(made, graph))
    assert [(h.type, h.split) for h in found] == [("CumProd", "d2")]
    assert hosted_text(found) == "y (CumProd, split by d2)"
    with pytest.raises(UsageError, match=r"no function here for y \(CumProd, split by d2\)"):
        run_plan(path, made, device="cuda")
    said: list[str] = []
    result = run_plan(path, made, steps=1, check=True, say=said.append)
    assert said == ["on the host, for want of a PyTorch function: y (CumProd, split by d2)"]
    assert result is not None
    assert result.fallbacks == {"CumProd"}
    assert result.passed
