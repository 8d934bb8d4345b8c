"""The clock: streams beside each other, one step of a program, finalists."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from planner.cli.main import main
from planner.clock import Weights, held_up, play, relaxation, step_bound
from planner.cost_models import HardwareProfile, load_profile
from planner.cost_models.accelerator import HostSpec
from planner.evaluate import predict, workload_of_configuration
from planner.frontends import load_model
from planner.ir import DeviceMesh
from planner.lowering import Program, lower
from planner.planning import Request, make_plan, read_plan
from planner.planning.breakdown import breakdown
from planner.planning.recall import complete
from planner.planning.schemes import parse_strategy
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.evaluate import evaluate
from planner.search.problem import FORBIDDEN
from planner.search.solve import solve

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


# Steps


def priced(
    model: str, shape: Sequence[int], profile: HardwareProfile, batch: int = 16, *, recompute: bool = False
) -> PricedProblem:
    graph = load_model(SAMPLES / f"{model}.onnx", batch=batch)
    rules, _ = bind_rules(graph)
    machine = Machine(profile, DeviceMesh.of(*shape), Settings(graph.loss is not None, recompute=recompute))
    active = active_tensors(graph, rules) if graph.loss is not None else frozenset()
    return price(graph, machine, rules, active, None)


def without_waits(profile: HardwareProfile) -> HardwareProfile:
    """The machine whose host is never late, and where nothing passes outside the model or is slowed."""
    framework = replace(profile.framework, collective_interference=0.0)
    return replace(profile, host=HostSpec(), framework=framework)


def rounding(program: Program) -> int:
    """Units by which prices of the objective, which are rounded one by one, may differ from seconds."""
    return 4 * len(program.graph.ops) + 2 * len(list(program.redistributions())) + len(list(program.graph.parameters))


def some_choices(p: PricedProblem) -> list[tuple[int, ...]]:
    """The best choice by the objective, and four that split a few operators at random and the others as that does."""
    rng = np.random.default_rng(0)
    best = solve(p.problem).choice
    operators = list(p.op_nodes.values())
    choices = [best]
    for _ in range(20):
        states = {n: np.array([best[n]]) for n in operators}
        for n in rng.choice(operators, min(3, len(operators)), replace=False):
            states[n] = rng.choice(np.flatnonzero(p.problem.nodes[n].costs < FORBIDDEN), 1)
        found = complete(p.problem, states)  # None where some redistribution between them is forbidden
        if found is not None:
            choices.append(found)
        if len(choices) == 5:
            return choices
    pytest.fail("no four choices were found in twenty draws")


@pytest.mark.parametrize("model", ["gpt_tiny", "moe_tiny", "resnet18_tiny"])
@pytest.mark.parametrize("machine", ["a100-80", "ascend-910b"])
def test_a_step_lies_between_what_every_plan_computes_and_everything_in_sequence(model: str, machine: str) -> None:
    """Of the best choice and of random ones."""
    p = priced(model, (2, 2), without_waits(load_profile(machine)))
    for choice in some_choices(p):
        program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(choice))
        timeline = play(p, choice, program)
        objective = breakdown(p, choice, program).total
        assert step_bound(p) <= timeline.end <= objective + rounding(program)
        assert play(p, choice, program, overlapped=False).end == pytest.approx(objective, abs=rounding(program))
        assert timeline.host == timeline.overhead == 0
        assert len(timeline.begins) == len(program.instructions)


@pytest.mark.parametrize("model", ["gpt_tiny", "moe_tiny", "resnet18_tiny", "mlp"])
@pytest.mark.parametrize("machine", ["a100-80", "h100", "ascend-910b"])
def test_no_step_is_shorter_than_a_relaxed_objective_of_its_plan(model: str, machine: str) -> None:
    """With any weights: of passes that are hidden behind, of passes that the host holds up; and recomputing blocks."""
    for recompute in (False, True):
        profile = load_profile(machine)
        p = priced(model, (2, 2), profile, recompute=recompute)
        relaxed = lru_cache(partial(relaxation, p))  # most weights are those of every choice
        for choice in some_choices(p):
            program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(choice))
            end = play(p, choice, program).end
            late = held_up(p, choice)
            every = frozenset((u, b) for u in range(100) for b in (False, True))
            for passes in (1.0, 0.7, 0.3):
                for held in (late, frozenset[tuple[int, bool]](), every):
                    for weights in (Weights(passes, held), Weights(passes, frozenset(), held, 0.4)):
                        value = evaluate(relaxed(weights).problem, choice)
                        assert value is not None
                        assert relaxed(weights).bound(value) <= end


def test_a_host_that_is_late_and_what_passes_outside_add_to_the_step() -> None:
    profile = load_profile("a100-80")
    slow, quick = (priced("gpt_tiny", (4,), p) for p in (profile, without_waits(profile)))
    choice = solve(quick.problem).choice
    program = lower(quick.graph, quick.machine.mesh, quick.rules, quick.active, quick.decode(choice))
    late, punctual = play(slow, choice, program), play(quick, choice, program)
    assert profile.device is not None
    assert late.overhead == round(profile.host.step_overhead_s / slow.machine.unit_s)
    assert late.host > 0
    assert late.end >= punctual.end + late.overhead


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        ("gpt_tiny", "ddp"),
        ("gpt_tiny", "fsdp"),
        ("gpt_tiny", "megatron:tp=2,sp=false,zero=0,micro_batch=8"),
        ("gpt_tiny", "megatron:cp=2,micro_batch=8"),
        ("llama_tiny", "ddp"),
        ("llama_tiny", "megatron:tp=2,micro_batch=8"),
        ("bert_tiny", "fsdp"),
        ("vit_tiny", "ddp"),
        ("moe_tiny", "ddp"),
    ],
)
def test_a_configuration_computes_as_long_as_the_plan_made_of_it(tmp_path: Path, model: str, strategy: str) -> None:
    """`evaluate --strategy` and `search --strategy`: kernels, and what they wait for the host."""
    path = SAMPLES / f"{model}.onnx"
    arguments = ["search", str(path), "--devices", "8", "--batch", "32", "--no-cache", "--strategy", strategy]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    parts = read_plan(tmp_path / "plan.json").cost.parts_s
    c = parse_strategy(strategy, devices=8, batch=32, precision="bf16", optimizer="adam")
    whole = load_model(path, batch=c.micro_batch * c.dp)
    machine = load_profile("a100-80")
    found = predict(workload_of_configuration(whole, c, machine), c, machine).breakdown
    computed = parts["compute_forward"] + parts["compute_backward"]
    assert computed == pytest.approx(found["compute"], rel=1e-6)


# Finalists


@pytest.mark.parametrize("machine", ["a100-80", "h100", "ascend-910b", "v100", "l40s"])
@pytest.mark.parametrize("model", ["gpt_tiny", "mlp", "resnet18_tiny"])
def test_nothing_that_is_listed_has_a_shorter_step_than_the_plan(model: str, machine: str) -> None:
    graph = load_model(SAMPLES / f"{model}.onnx", batch=16)
    planned = make_plan(graph, Request(8, load_profile(machine), Settings(graph.loss is not None), top_k=3))
    steps = [planned.step_time_s, *(p.step_time_s for p in planned.others)]
    assert steps == sorted(steps)
    assert all(c.step_time_s >= planned.step_time_s for c in planned.candidates if c.step_time_s is not None)
    assert planned.step_bound_s <= planned.step_time_s
    assert 0 <= planned.gap < 1


def test_the_gap_is_that_of_the_step_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["search", str(SAMPLES / "mlp.onnx"), "--devices", "4", "--no-cache", "--json"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out)
    step, bound = found["step_time_s"], found["step_time_lower_bound_s"]
    assert 0 < bound <= step
    assert found["gap"] == pytest.approx((step - bound) / step)
    assert (found["status"] == "optimal") == (found["gap"] == 0)
    cost = read_plan(tmp_path / "plan.json").cost
    assert (cost.gap, cost.step_time_lower_bound_s) == (found["gap"], bound)


def test_no_plan_at_all_is_faster_than_the_bound_and_none_found_is_missed(tmp_path: Path) -> None:
    """Every choice of a small graph is simulated: the plan is the fastest of them, and the bound below each."""
    node = helper.make_node
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])]
    put, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [256, 512]) for n in ("x", "y"))
    weight = numpy_helper.from_array(np.zeros((512, 512), np.float32), "w")
    path = tmp_path / "small.onnx"
    graph = helper.make_graph(nodes, "small", [put], [out], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), path)
    for machine in ("a100-80", "ascend-910b"):
        planned = make_plan(load_model(path), Request(2, load_profile(machine), Settings(training=True)))
        ends = []
        for option in planned.options:
            p = option.priced
            assert p is not None
            for choice in itertools.product(*(range(len(n.costs)) for n in p.problem.nodes)):
                if evaluate(p.problem, choice) is not None:
                    program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(choice))
                    ends.append(play(p, choice, program).end)
        assert len(ends) > 100
        assert planned.step_bound_s <= min(ends) * planned.priced.machine.unit_s
        assert planned.step_time_s == pytest.approx(min(ends) * planned.priced.machine.unit_s)
