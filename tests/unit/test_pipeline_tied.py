"""A table that several stages read: held by each, its gradient summed among them, priced and written down."""

from __future__ import annotations

import pytest

from planner.builder import build
from planner.cost_models import CollectiveModel, load_profile
from planner.frontends import import_bytes
from planner.planning import PlanDocument, Planned, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import Pipelined, pipelined
from planner.pricing import Settings

TABLE = "transformer.wte.weight"
PROFILE = load_profile("a100-80")


def planned(devices: int = 2, *pins: str, training: bool = True) -> Planned:
    sizes = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 512, "seq": 16, "batch": 4}
    graph = import_bytes(build("gpt", sizes).SerializeToString(), name="gpt")
    constraints = parse_pin(f"mesh={devices}")
    for pin in pins:
        constraints += parse_pin(pin)
    return make_plan(graph, Request(devices, PROFILE, Settings(training), constraints=constraints))


@pytest.fixture(scope="module")
def whole() -> Planned:
    return planned(2, f"{TABLE} stored=[_,_]")


def document(made: Planned, stages: int, micro_batches: int = 4) -> tuple[Pipelined, PlanDocument]:
    found = pipelined(made, stages, micro_batches)
    return found, describe(made, bind={}, batch=None, pipeline=found)


def test_the_gradient_of_a_tied_table_is_summed_between_its_stages(whole: Planned) -> None:
    found, plan = document(whole, 4)
    assert found.shared == (TABLE,)
    entry = plan.parameters[TABLE]
    assert entry.stages == [0, 3]
    assert entry.across is not None
    assert entry.across.groups == [[0, 6], [1, 7]]
    assert entry.across.bytes == 512 * 64 * 2
    assert entry.across.seconds > 0
    others = [p for n, p in plan.parameters.items() if n != TABLE]
    assert all(p.across is None and len(p.stages) == 1 for p in others)


def test_it_takes_its_time_once_a_step_in_the_stages_that_hold_it(whole: Planned) -> None:
    found, plan = document(whole, 4)
    across = plan.parameters[TABLE].across
    assert across is not None
    model = CollectiveModel(PROFILE)
    # Four stages of two devices are one server.
    alone = float(model.seconds("all_reduce", across.bytes, model.group((2, 4), (0,)), concurrent=2))
    assert across.seconds == pytest.approx(alone, abs=PROFILE.price_resolution_s)
    for stage in range(4):
        held = [n for n, p in plan.parameters.items() if stage in p.stages]
        update = sum(plan.parameters[n].optimizer_s for n in held)
        moved = sum(r.seconds for r in plan.redistributions if r.tensor in held)
        summed = across.seconds if stage in (0, 3) else 0.0
        # Sums over the data axis run beside the backward pass.
        assert update + summed - 1e-11 <= plan.stages[stage].once_s <= update + moved + summed + 1e-11
    assert PROFILE.device is not None
    once = max(s.once_s for s in plan.stages) + PROFILE.host.step_overhead_s
    assert found.step_time_s == pytest.approx(found.run.total_s + once)


def test_a_shard_of_the_table_is_summed_with_the_same_shard() -> None:
    made = planned(2, f"{TABLE} stored=[x,_]")
    _, plan = document(made, 2)
    across = plan.parameters[TABLE].across
    assert across is not None
    assert across.bytes == 512 * 64 * 2 // 2
    assert across.groups == [[0, 2], [1, 3]]


def test_nothing_is_summed_in_one_stage_or_without_training(whole: Planned) -> None:
    for made, stages in ((whole, 1), (planned(2, training=False), 2)):
        _, plan = document(made, stages)
        assert all(p.across is None for p in plan.parameters.values())
    assert document(whole, 1)[1].parameters[TABLE].stages == []


def test_far_stages_sum_over_slower_links(whole: Planned) -> None:
    """Of eight stages of two devices, the first and the last stand on different servers."""
    near, far = (document(whole, n)[1].parameters[TABLE].across for n in (2, 8))
    assert near is not None
    assert far is not None
    assert far.seconds > near.seconds
