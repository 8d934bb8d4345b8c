"""plan.json tells where every second and byte of its cost goes: what it tells adds up to the last digit."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pytest

from planner.cost_models import load_profile
from planner.frontends import load_model
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.pipeline import in_parts, plan_in_parts
from planner.pricing import Settings

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
A100 = load_profile("a100-80")
CASES = [
    ("gpt_tiny", 8, "none", True),
    ("gpt_tiny", 8, "blocks", True),
    ("moe_tiny", 4, "none", True),
    ("resnet18_tiny", 4, "none", True),
    ("llama_tiny", 8, "none", False),
]


@lru_cache
def plan_of(name: str, devices: int, recompute: Literal["none", "blocks"], training: bool) -> PlanDocument:
    graph = load_model(SAMPLES / f"{name}.onnx")
    return describe(
        make_plan(graph, Request(devices, A100, Settings(training), recompute=recompute)), bind={}, batch=None
    )


def units(plan: PlanDocument, seconds: float) -> int:
    whole = round(seconds / plan.cost.price_resolution_s)
    assert whole * plan.cost.price_resolution_s == seconds
    return whole


@pytest.mark.parametrize(("name", "devices", "recompute", "training"), CASES)
def test_costs_of_operators_moves_and_parameters_add_up_to_the_parts_of_the_objective(
    name: str, devices: int, recompute: Literal["none", "blocks"], training: bool
) -> None:
    plan = plan_of(name, devices, recompute, training)
    found = dict.fromkeys(plan.cost.parts_s, 0)
    for op in plan.operators.values():
        for run in op.runs:
            inside = units(plan, run.inside_s)
            found["inside_operators"] += inside
            part = "compute_backward" if run.phase == "backward" else "compute_forward"
            found[part] += units(plan, run.seconds) - inside
    for r in plan.redistributions:
        kind, gradient = "parameter" if r.tensor in plan.parameters else "activation", r.direction == "gradient"
        found[f"{kind}_gradients" if gradient else f"{kind}s"] += units(plan, r.seconds)
    found["optimizer"] = sum(units(plan, p.optimizer_s) for p in plan.parameters.values())
    assert found == {part: units(plan, seconds) for part, seconds in plan.cost.parts_s.items()}
    assert sum(found.values()) == units(plan, plan.cost.objective_s)


@pytest.mark.parametrize(("name", "devices", "recompute", "training"), CASES)
def test_parts_of_the_step_add_up_to_it_and_no_event_is_later(
    name: str, devices: int, recompute: Literal["none", "blocks"], training: bool
) -> None:
    plan = plan_of(name, devices, recompute, training)
    runs = [(r.begin_s, r.seconds) for op in plan.operators.values() for r in op.runs]
    events = runs + [(r.begin_s, r.seconds) for r in plan.redistributions]
    last = max(units(plan, begin) + units(plan, seconds) for begin, seconds in events)
    step = {part: units(plan, seconds) for part, seconds in plan.cost.step_parts_s.items()}
    assert sum(step.values()) == units(plan, plan.cost.step_time_s)
    # Prices are rounded one by one.
    updates = [units(plan, p.optimizer_s) for p in plan.parameters.values()]
    assert step["optimizer"] == pytest.approx(sum(updates), abs=len(updates))
    assert step["compute"] == pytest.approx(sum(units(plan, seconds) for _, seconds in runs), abs=2 * len(runs))
    assert last <= step["compute"] + step["collectives"] + step["host"] + 1
    assert all(n >= 0 for n in step.values())
    busy = sorted((units(plan, begin), units(plan, seconds)) for begin, seconds in runs)
    assert all(a + d <= b for (a, d), (b, _) in pairwise(busy)), "one operator at a time"


@pytest.mark.parametrize(("name", "devices", "recompute", "training"), CASES)
def test_memory_by_kind_adds_up_to_the_peak(
    name: str, devices: int, recompute: Literal["none", "blocks"], training: bool
) -> None:
    cost = plan_of(name, devices, recompute, training).cost
    assert sum(cost.memory_bytes.values()) == cost.peak_memory_bytes
    assert all(size >= 0 for size in cost.memory_bytes.values())


def test_what_blocks_run_again_is_told_apart() -> None:
    plan = plan_of("gpt_tiny", 8, "blocks", True)
    again = {name for block in plan.schedule.recompute for name in block}
    assert again == {n for n, op in plan.operators.items() if "recompute" in [r.phase for r in op.runs]}


def test_repeated_blocks_are_runs_of_operators_of_the_same_types() -> None:
    plan = plan_of("gpt_tiny", 8, "none", True)
    assert plan.model.repeated
    for run in plan.model.repeated:
        assert len(run) > 1
        assert len({tuple(plan.operators[n].type for n in block) for block in run}) == 1


def test_stages_tell_what_a_micro_batch_costs_them() -> None:
    def load(batch: int | None) -> object:
        return load_model(SAMPLES / "gpt_tiny.onnx", batch=batch)

    graph, parts = in_parts(load, 16, 2, 4, 4)  # type: ignore[arg-type]
    planned, pipeline = plan_in_parts(graph, Request(4, A100, Settings(True)), parts)
    plan = describe(planned, bind={}, batch=parts.batch, pipeline=pipeline)
    first, last = plan.stages
    assert first.sends_s > 0 == last.sends_s
    unit = plan.cost.price_resolution_s
    work = sum(r.seconds for op in plan.operators.values() for r in op.runs)
    moved = sum(r.seconds for r in plan.redistributions if r.tensor not in plan.parameters)
    # And they wait for the host that starts their kernels.
    assert sum(s.forward_s + s.backward_s for s in plan.stages) >= work + moved - unit
    assert plan.cost.memory_bytes == {}
