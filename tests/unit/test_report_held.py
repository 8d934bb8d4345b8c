"""What a device holds over a step, and what it sends over links, counted by hand for small clusters."""

from __future__ import annotations

from typing import Any

import pytest

from planner.planning import PlanDocument
from planner.report.figures import figures
from planner.report.held import held_by_stage, held_over_time
from planner.report.timeline import pipeline_run
from planner.report.traffic import MOST, traffic
from tests.unit.report_plans import old, plan_of


@pytest.mark.parametrize("name", ["data", "recomputed"])
def test_activations_rise_to_what_the_plan_says_and_are_gone_at_the_end(name: str) -> None:
    plan = plan_of(name)
    held = held_over_time(plan, figures(plan))
    assert held is not None
    times = [t for t, _ in held["points"]]
    sizes = [size for _, size in held["points"]]
    assert times == sorted(times)
    assert max(sizes) == plan.cost.memory_bytes["activations"]
    assert sizes[0] == sizes[-1] == 0
    assert times[-1] <= plan.cost.step_time_s
    throughout = sum(held["throughout"].values())
    assert throughout + max(sizes) + held["transient"] == plan.cost.peak_memory_bytes


def test_nothing_is_said_where_the_plan_does_not_say_what_it_holds() -> None:
    plan = plan_of("pipeline")
    assert held_over_time(plan, figures(plan)) is None
    before = old(plan_of("data"))
    assert held_over_time(before, figures(before)) is None


def in_flight(plan: PlanDocument) -> list[int]:
    return [max(n for _, n in stage["points"]) for stage in held_by_stage(plan, pipeline_run(plan))]


def test_stages_of_1f1b_hold_one_micro_batch_less_than_the_stage_before() -> None:
    plan = plan_of("pipeline").model_copy(deep=True)
    plan.schedule.order, plan.schedule.micro_batches = "1f1b", 8
    assert in_flight(plan) == [2, 1]
    plan.schedule.order = "gpipe"
    assert in_flight(plan) == [8, 8]


def test_what_parameters_take_of_a_stage_is_below_its_peak() -> None:
    plan = plan_of("pipeline")
    for stage, held in zip(plan.stages, held_by_stage(plan, pipeline_run(plan)), strict=True):
        assert 0 < held["parameters"] <= held["peak"] == stage.peak_memory_bytes
        assert held["points"][-1][1] == 0


def test_a_plan_of_one_stage_has_no_stages_to_show() -> None:
    plan = plan_of("data")
    assert held_by_stage(plan, pipeline_run(plan)) == []


def of(plan: PlanDocument, what: str) -> list[dict[str, Any]]:
    found = traffic(plan)
    assert found is not None
    return [r for r in found["rows"] if r["what"] == what]


def placed(plan: PlanDocument, per_server: int) -> PlanDocument:
    out = plan.model_copy(deep=True)
    out.cluster.devices_per_server = per_server
    return out


def test_a_ring_within_a_server_sends_nothing_between_servers() -> None:
    plan = placed(plan_of("data"), 4)
    rows = traffic(plan)["rows"]  # type: ignore[index]
    assert rows
    assert all(r["between_bytes"] == 0 for r in rows)


def test_gradients_of_data_parallelism_go_twice_around_the_ring() -> None:
    plan = plan_of("data")
    steps = [
        s for r in plan.redistributions if r.tensor in plan.parameters and r.direction == "gradient" for s in r.steps
    ]
    expected = sum(s.bytes * 3 / 4 * {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1}[s.kind] for s in steps)
    (row,) = of(plan, "gradients")
    assert row["inside_bytes"] + row["between_bytes"] == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(("per_server", "between"), [(4, 0.0), (2, 0.5), (1, 1.0)])
def test_a_ring_leaves_a_server_once(per_server: int, between: float) -> None:
    (row,) = of(placed(plan_of("data"), per_server), "gradients")
    whole = row["inside_bytes"] + row["between_bytes"]
    assert row["between_bytes"] == pytest.approx(whole * between, abs=2)


def test_stages_send_activations_on_and_gradients_back() -> None:
    plan = placed(plan_of("pipeline"), 2)
    (there,) = [r for r in of(plan, "activations") if r["axes"] == "stages"]
    (back,) = of(plan, "gradients of activations")
    assert there["stage"] == 0
    assert back["stage"] == 1
    assert there["between_bytes"] > 0
    assert there["inside_bytes"] == 0
    assert back["between_bytes"] == there["between_bytes"]


def test_links_are_those_of_the_packaged_profile_or_not_named() -> None:
    plan = plan_of("data")
    assert traffic(plan)["links"]["inside"] > 1e9  # type: ignore[index]
    other = plan.model_copy(deep=True)
    other.cluster.profile_digest = "0" * 64
    assert traffic(other)["links"] == {}  # type: ignore[index]


def test_very_many_devices_are_not_looked_at_one_by_one() -> None:
    plan = plan_of("data").model_copy(deep=True)
    plan.meshes["m0"].axes[0].size = 2 * MOST
    assert traffic(plan) is None
