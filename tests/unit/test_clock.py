"""The clock: streams beside each other, one step of a program, finalists."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import HardwareProfile, load_profile
from cost_models.pipeline.streams import Work, run_streams
from planner.cli.main import main
from planner.clock import play, step_bound
from planner.clock.streams import COMPUTE, Piece, run
from planner.evaluate import predict, workload_of_configuration
from planner.evaluate.schemes import parse_strategy
from planner.frontends import load_model
from planner.ir import DeviceMesh
from planner.lowering import lower
from planner.planning import Request, make_plan, read_plan
from planner.planning.breakdown import breakdown
from planner.pricing import Machine, PricedProblem, Settings, active_tensors, bind_rules, price
from planner.search.solve import solve

SAMPLES = Path(__file__).parents[2] / "sample_graphs"
seconds = st.floats(0, 10, allow_nan=False).map(lambda x: round(x, 3))


# Streams


@settings(deadline=None)
@given(st.lists(seconds, max_size=8), st.lists(seconds, max_size=8), st.floats(1, 3), st.data())
def test_two_streams_run_as_those_of_a_pipeline_stage_do(
    compute: list[float], sent: list[float], contention: float, data: st.DataObject
) -> None:
    """Against a simulation of two streams that was written apart: pieces wait for so many of the other stream."""
    waits = sorted(data.draw(st.lists(st.integers(0, len(compute)), min_size=len(sent), max_size=len(sent))))
    expected = run_streams(
        [Work(s) for s in compute], [Work(s, n) for s, n in zip(sent, waits, strict=True)], contention
    )
    pieces = [Piece(COMPUTE, s) for s in compute]
    pieces += [Piece(1, s, (n - 1,) if n else ()) for s, n in zip(sent, waits, strict=True)]
    _, ends = run(pieces, contention)
    assert ends == pytest.approx([*expected[0], *expected[1]], abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), seconds), min_size=1, max_size=12), st.floats(1, 2), st.data())
def test_no_stream_ends_before_its_own_work_and_all_end_by_the_sum(
    works: list[tuple[int, float]], contention: float, data: st.DataObject
) -> None:
    pieces = []
    for number, (stream, duration) in enumerate(works):
        needs = data.draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        pieces.append(Piece(stream, duration, needs))
    begins, ends = run(pieces, contention)
    for stream in range(3):
        own = [n for n, p in enumerate(pieces) if p.stream == stream]
        assert max((ends[n] for n in own), default=0.0) >= sum(pieces[n].duration for n in own) - 1e-9
        assert all(ends[a] <= begins[b] + 1e-9 for a, b in itertools.pairwise(own))
    assert all(begins[n] >= ends[needed] - 1e-9 for n, p in enumerate(pieces) for needed in p.needs)
    assert max(ends) <= contention * sum(p.duration for p in pieces) + 1e-9


def test_what_takes_no_time_needs_no_stream() -> None:
    begins, ends = run([Piece(COMPUTE, 2.0), Piece(-1, 0.0, (0,)), Piece(1, 1.0, (1,)), Piece(-1, 0.0)])
    assert (begins, ends) == ([0, 2, 2, 0], [2, 2, 3, 0])


def test_what_waits_for_a_later_piece_goes_on_where_that_waits_for_it() -> None:
    """A bucket that is full only after an operator that needs what the bucket brings."""
    _, ends = run([Piece(1, 1.0, (), after=1), Piece(COMPUTE, 1.0, (0,))])
    assert ends == [1, 2]
    with pytest.raises(ValueError, match="piece 0 waits"):
        run([Piece(1, 1.0, (1,)), Piece(COMPUTE, 1.0, (0,))])
    with pytest.raises(ValueError, match="contention"):
        run([], 0.5)


# Steps


def priced(model: str, shape: Sequence[int], profile: HardwareProfile, batch: int = 16) -> PricedProblem:
    graph = load_model(SAMPLES / f"{model}.onnx", batch=batch)
    rules, _ = bind_rules(graph)
    machine = Machine(profile, DeviceMesh.of(*shape), Settings(graph.loss is not None))
    active = active_tensors(graph, rules) if graph.loss is not None else frozenset()
    return price(graph, machine, rules, active, None)


def without_waits(profile: HardwareProfile) -> HardwareProfile:
    """The machine whose host is never late, and where nothing passes outside the model or is slowed."""
    assert profile.device is not None
    device = replace(profile.device, dispatch_interval_s=0.0, step_overhead_s=0.0, collective_interference=0.0)
    return replace(profile, device=device)


@pytest.mark.parametrize("model", ["gpt_tiny", "moe_tiny", "resnet18_tiny"])
@pytest.mark.parametrize("machine", ["a100-80", "ascend-910b"])
def test_a_step_lies_between_what_every_plan_computes_and_everything_in_sequence(model: str, machine: str) -> None:
    """Of the best choice and of random ones."""
    p = priced(model, (2, 2), without_waits(load_profile(machine)))
    rng = np.random.default_rng(0)
    best = solve(p.problem).choice
    choices = [best]
    for _ in range(4):
        some = {int(n) for n in rng.choice(len(best), 5)} & set(p.op_nodes.values())
        nodes = list(p.problem.nodes)
        for n in some:
            keep = int(rng.integers(len(nodes[n].costs)))
            costs = np.where(np.arange(len(nodes[n].costs)) == keep, nodes[n].costs, 1 << 60)
            nodes[n] = replace(nodes[n], costs=costs)
        found = solve(replace(p.problem, nodes=nodes))
        if found.cost is not None and found.cost < 1 << 58:
            choices.append(found.choice)
    for choice in choices:
        program = lower(p.graph, p.machine.mesh, p.rules, p.active, p.decode(choice))
        timeline = play(p, choice, program)
        assert step_bound(p) <= timeline.end <= breakdown(p, choice, program).total
        assert timeline.host == timeline.overhead == 0
        assert len(timeline.begins) == len(program.instructions)


def test_a_host_that_is_late_and_what_passes_outside_add_to_the_step() -> None:
    profile = load_profile("a100-80")
    slow, quick = (priced("gpt_tiny", (4,), p) for p in (profile, without_waits(profile)))
    choice = solve(quick.problem).choice
    program = lower(quick.graph, quick.machine.mesh, quick.rules, quick.active, quick.decode(choice))
    late, punctual = play(slow, choice, program), play(quick, choice, program)
    assert profile.device is not None
    assert late.overhead == round(profile.device.step_overhead_s / slow.machine.unit_s)
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
    whole, one = (load_model(path, batch=c.micro_batch * n) for n in (c.dp, c.ep))
    machine = load_profile("a100-80")
    found = predict(workload_of_configuration(whole, one, c, machine), c, machine).breakdown
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
