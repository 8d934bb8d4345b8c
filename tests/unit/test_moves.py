"""What stands among the redistributions of a plan is done by somebody for somebody."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.planning import Request, describe, make_plan
from planner.pricing import Settings

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"


@pytest.mark.parametrize(("devices", "training"), [(4, True), (8, True), (8, False)])
@pytest.mark.parametrize("name", ["gpt_tiny", "moe_tiny", "resnet18_tiny", "vit_tiny"])
def test_nothing_is_moved_to_where_it_is(name: str, devices: int, training: bool) -> None:
    """Not even by free steps: away from where a tensor is produced, and back by a slice."""
    request = Request(devices, load_profile("alpha-beta"), Settings(training))
    plan = describe(make_plan(load_model(SAMPLES / f"{name}.onnx"), request), bind={}, batch=None)
    for r in plan.redistributions:
        assert r.steps, r
        assert r.source != r.target, r
        assert r.target != plan.tensors[r.tensor].layout or r.direction == "gradient", r
        assert r.source != plan.tensors[r.tensor].gradient or r.direction == "forward", r
