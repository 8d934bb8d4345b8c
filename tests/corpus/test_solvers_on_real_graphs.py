"""Elimination and the integer program on real graphs, where the model corpus lies beside the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.ir import DeviceMesh
from planner.planning import Request, make_plan
from planner.pricing import Settings

MODELS = Path(__file__).parents[3] / "shared" / "models"

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(not MODELS.exists(), reason="the model corpus does not lie beside the checkout"),
]


@pytest.mark.parametrize(
    "name",
    ["gpt2_small_loss", "bert_base_mlm_loss", "vit_b16_loss", "resnet50_loss", "t5_small_loss", "light_resnet50"],
)
def test_elimination_and_the_integer_program_agree(name: str) -> None:
    graph = load_model(MODELS / f"{name}.onnx", batch=64)
    settings = Settings(training=graph.loss is not None)
    found = {}
    for solver in ("dp", "ilp"):
        request = Request(16, load_profile("a100-80"), settings, meshes=(DeviceMesh.of(16),), solver=solver)
        planned = make_plan(graph, request)
        assert planned.objective_gap == 0
        found[solver] = planned.parts.total
    assert found["dp"] == found["ilp"]
