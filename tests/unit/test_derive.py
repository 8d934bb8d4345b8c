"""A plan.json derived again: what an interpreter of plans once found unwatched, and choices of all kinds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.builder import build
from planner.cost_models import load_profile
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph
from planner.planning import PlanDocument, Request, describe, make_plan, program_of
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import pipelined
from planner.planning.programs import each_once
from planner.planning.roles import role_to_text
from planner.pricing import PriceTables, Settings, bind_rules
from planner.rules.strategy import strategies
from planner.verify.derive import Difference, derived, differences
from planner.verify.label import labelled, plan_digest, unlabelled
from planner.verify.verification import verify

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
SLOW = load_profile("alpha-beta")  # heavy operators are split, and much is moved
A100 = load_profile("a100-80")


@lru_cache
def gpt() -> Graph:
    sizes = {"layers": 2, "hidden": 32, "heads": 4, "vocab": 64, "seq": 8, "batch": 8}
    return import_bytes(build("gpt", sizes).SerializeToString(), name="gpt")


@lru_cache
def plan_of(stages: int = 1, training: bool = True) -> PlanDocument:
    made = make_plan(gpt(), Request(4, SLOW if training else A100, Settings(training)))
    pipeline = pipelined(made, stages, 2) if stages > 1 else None
    return describe(made, bind={}, batch=None, pipeline=pipeline)


def found(change: Callable[[dict[str, Any]], object], plan: PlanDocument | None = None) -> dict[str, Difference]:
    """What is told of the plan once it is changed so, by path."""
    document = json.loads((plan or plan_of()).model_dump_json(by_alias=True))
    change(document)
    return {d.path: d for d in differences(PlanDocument.model_validate(document), gpt())}


def moved(document: dict[str, Any], direction: str = "forward") -> int:
    return next(i for i, r in enumerate(document["redistributions"]) if r["direction"] == direction)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("training", [True, False])
def test_a_plan_of_the_planner_is_what_is_derived(stages: int, training: bool) -> None:
    plan = plan_of(stages, training)
    assert differences(plan, gpt()) == []
    assert derived(plan, gpt()) == plan


def test_what_is_converted_again_in_a_recomputed_block_is_read_once() -> None:
    """The file lists such a conversion with both of its times; the program makes it in both passes by itself."""
    pins = parse_pin("mesh=2x2") + parse_pin("*.softmax d1=y")
    made = make_plan(gpt(), Request(4, A100, Settings(True), recompute="blocks", constraints=pins))
    plan = describe(made, bind={}, batch=None)
    assert len(each_once(plan)) < len(plan.redistributions)
    assert program_of(plan, gpt()).instructions == made.program.instructions
    assert verify(plan, gpt()).verdict == "ok"
    twice = plan.model_copy(update={"redistributions": [*plan.redistributions, plan.redistributions[0]]})
    assert verify(twice, gpt()).verdict == "failed"


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "groups reversed": (lambda d: d["meshes"]["m0"]["groups"]["x"].reverse(), "meshes.m0.groups.x[0][1]"),
    "groups zeroed": (
        lambda d: d["meshes"]["m0"]["groups"].update(x=[[0, 0], [0, 0]]), "meshes.m0.groups.x[0][1]",
    ),
    "groups removed": (lambda d: d["meshes"]["m0"].update(groups={}), "meshes.m0.groups.x"),
    "bytes of a step": (
        lambda d: d["redistributions"][0]["steps"][0].update(bytes=1), "redistributions[0].steps[0].bytes",
    ),
    "seconds of a move": (lambda d: d["redistributions"][0].update(seconds=0.0), "redistributions[0].seconds"),
    "a gradient's move gone": (lambda d: d["redistributions"].pop(moved(d, "gradient")), "plan"),
    "a move twice": (lambda d: d["redistributions"].insert(0, d["redistributions"][0]), "plan"),
    "moves reordered": (lambda d: d["redistributions"].reverse(), "plan"),
    "compute": (
        lambda d: d["parameters"]["transformer.ln_f.weight"].update(compute=[]),
        "parameters.transformer.ln_f.weight.compute",
    ),
    "gradient": (
        lambda d: d["parameters"]["transformer.ln_f.weight"].update(gradient=None),
        "parameters.transformer.ln_f.weight.gradient",
    ),
    "readers": (
        lambda d: d["parameters"]["transformer.wte.weight"]["readers"].pop(),
        "parameters.transformer.wte.weight.readers",
    ),
    "peak memory": (lambda d: d["cost"].update(peak_memory_bytes=1), "cost.peak_memory_bytes"),
    "objective": (lambda d: d["cost"].update(objective_s=1.0), "cost.objective_s"),
    "bound above the objective": (
        lambda d: d["cost"].update(objective_lower_bound_s=d["cost"]["objective_s"] * 2),
        "cost.objective_lower_bound_s",
    ),
    "gap": (lambda d: d["cost"].update(gap=0.5), "cost.gap"),
    "mode": (lambda d: d["schedule"].update(mode="inference"), "operators.transformer.wte.gather.strategy"),
    "label": (lambda d: d.update(verification="full"), "verification"),
    "another machine": (lambda d: d["cluster"].update(profile_digest="0"), "cluster.profile_digest"),
    "a machine that is not known": (lambda d: d["cluster"].update(hardware="abacus"), "cluster.hardware"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_not_watched_is_noticed(name: str) -> None:
    change, path = CHANGES[name]
    told = found(change)
    assert path in told, list(map(str, told.values()))[:5]


def test_a_difference_tells_what_was_expected_and_found() -> None:
    told = found(lambda d: d["cost"].update(gap=0.5))
    assert str(told["cost.gap"]) == f"at cost.gap: expected {plan_of().cost.gap}, found 0.5"


def test_operands_and_pending_sums_are_watched() -> None:
    plan = plan_of()
    name, op = next((n, o) for n, o in plan.operators.items() if any(x and any(x.dims) for x in o.operands))
    slot = next(i for i, x in enumerate(op.operands) if x and any(x.dims))

    def whole(d: dict[str, Any]) -> None:
        entry = d["operators"][name]["operands"][slot]
        entry["dims"] = [[] for _ in entry["dims"]]

    assert any(p.startswith(f"operators.{name}.operands[{slot}].dims") for p in found(whole))
    tensor = next(n for n, t in plan.tensors.items() if not t.layout.partial and any(t.layout.dims) is False)
    told = found(lambda d: d["tensors"][tensor]["layout"].update(partial={"x": "sum"}))
    assert told


def test_a_stage_is_cut_elsewhere() -> None:
    """A later cut is as good a choice; what it costs is not what the file says."""
    plan = plan_of(2)
    last = [n for n, o in plan.operators.items() if o.stage == 0][-1]
    told = found(lambda d: d["operators"][last].update(stage=1), plan)
    assert any(p.startswith("stages[0]") for p in told)


def test_a_tied_table_is_summed_across_stages() -> None:
    plan = plan_of(2)
    table = "transformer.wte.weight"
    assert plan.parameters[table].stages == [0, 1]
    assert f"parameters.{table}.across" in found(lambda d: d["parameters"][table].update(across=None), plan)
    reversed_ = found(lambda d: d["parameters"][table]["across"]["groups"][0].reverse(), plan)
    assert f"parameters.{table}.across.groups[0][0]" in reversed_


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_any_choice_is_derived_or_refused_in_words(data: st.DataObject) -> None:
    """Operators given other strategies that they offer, on moves that were made for the old ones."""
    plan = plan_of(data.draw(st.sampled_from([1, 2])))
    document = json.loads(plan.model_dump_json(by_alias=True))
    rules, _ = bind_rules(gpt())
    mesh = plan.mesh
    for name in data.draw(st.lists(st.sampled_from(sorted(document["operators"])), min_size=1, max_size=3)):
        offered = strategies(rules[name], mesh, training=True)
        other = data.draw(st.sampled_from(offered))
        roles = {n: role_to_text(r) for n, r in zip(mesh.names, other.roles, strict=True)}
        changed = {a: str(role) for a, role in plan.operators[name].strategy.items()} != roles
        document["operators"][name]["strategy"] = roles
        if changed:
            told = differences(PlanDocument.model_validate(document), gpt())
            assert told
            assert all(d.path and d.expected and d.found for d in told)


def test_prices_are_kept_for_further_plans() -> None:
    tables: dict[DeviceMesh, PriceTables] = {}
    assert differences(plan_of(), gpt(), tables=tables) == []
    assert list(tables) == [plan_of().mesh]
    assert differences(plan_of(training=True), gpt(), tables=tables) == []


def test_a_large_plan_takes_seconds() -> None:
    graph = load_model(SAMPLES / "gpt2_small.onnx")
    plan = describe(make_plan(graph, Request(16, A100, Settings(True))), bind={}, batch=None)
    started = time.process_time()
    assert differences(plan, graph) == []
    assert time.process_time() - started < 5


# Labels


def test_a_label_says_what_ran() -> None:
    plan, pipeline, forward = plan_of(), plan_of(2), plan_of(training=False)
    assert labelled(plan, whole=True, gradients=True).verification == "full"
    assert labelled(plan, whole=True, gradients=False).verification == "forward"
    assert labelled(plan, whole=False, gradients=True).verification == "sibling"
    assert labelled(forward, whole=True, gradients=False).verification == "forward"
    assert labelled(pipeline, whole=True, gradients=True).verification == "sibling"
    assert labelled(pipeline, whole=True, gradients=True, stages=2, micro_batches=2).verification == "full"


def test_a_label_is_bound_to_its_plan() -> None:
    plan = labelled(plan_of(), whole=True, gradients=True)
    assert differences(plan, gpt()) == []
    assert plan_digest(plan) == plan_digest(plan_of())
    assert unlabelled(plan) == plan_of()
    told = found(lambda d: d["model"].update(name="another"), plan)
    assert list(told) == ["executed.plan_digest"]
    assert "verification" in found(lambda d: d.update(verification="forward"), plan)
    assert "verification" in found(lambda d: d.update(executed=None), plan)
