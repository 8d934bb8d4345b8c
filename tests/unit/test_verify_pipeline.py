"""Pipelines are executed as such, in their stages, micro-batch by micro-batch, with sums between stages, and faults in
any of these are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from planner.builder import build
from planner.cli.main import main
from planner.cost_models import load_profile
from planner.frontends import import_bytes, load_model
from planner.ir import DeviceMesh, Graph, Layout, MeshAxis, Role
from planner.kernels.shards import Array
from planner.lowering import ChunkProgram, Event, Load, Passes, Redistribute, Run, Staged, passes
from planner.lowering.staged import Phase
from planner.planning import PlanDocument, Request, describe, make_plan
from planner.planning.constraints import parse_pin
from planner.planning.pipeline import pipelined
from planner.planning.programs import program_of
from planner.pricing import Settings
from planner.verify.check import verify_program
from planner.verify.compare import difference
from planner.verify.data import random_tensors
from planner.verify.double import in_double
from planner.verify.label import labelled
from planner.verify.pipeline import PipelineProof, verify_pipeline
from planner.verify.pipelined import affordable, fewest_micro_batches, in_parts, pipeline_of
from planner.verify.reference import gradients, run_ops
from planner.verify.terms import summed
from planner.verify.verification import verify
from planner.verify.work import Budget, ExecutionCost

SAMPLES = Path(__file__).resolve().parents[2] / "sample_graphs"
TABLE = "transformer.wte.weight"
Change = Callable[[dict[str, Any]], None]


def graph_of(name: str, batch: int | None = None) -> Graph:
    if name == "gpt4":
        sizes = {"layers": 4, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8, "batch": 4}
        return import_bytes(build("gpt", sizes).SerializeToString(), name=name)
    return load_model(SAMPLES / f"{name}.onnx", batch=batch)


@lru_cache
def plan_of(
    name: str,
    stages: int = 2,
    micro_batches: int = 4,
    *pins: str,
    training: bool = True,
    recompute: bool = False,
    profile: str = "alpha-beta",
) -> tuple[Graph, PlanDocument]:
    """Heavy operators must split on the usual profile, so that much is redistributed."""
    graph = graph_of(name)
    constraints = parse_pin("mesh=2x2")
    for pin in pins:
        constraints += parse_pin(pin)
    settings = Settings(training=training)
    way: Literal["blocks", "none"] = "blocks" if recompute else "none"
    planned = make_plan(graph, Request(4, load_profile(profile), settings, constraints=constraints, recompute=way))
    found = pipelined(planned, stages, micro_batches)
    return graph, describe(planned, bind={}, batch=None, pipeline=found)


def staged_of(graph: Graph, plan: PlanDocument, micro_batches: int | None = None) -> Staged:
    return pipeline_of(plan, program_of(plan, graph), micro_batches or plan.schedule.micro_batches)


def edited(plan: PlanDocument, change: Change) -> PlanDocument:
    document = json.loads(plan.model_dump_json(by_alias=True))
    change(document)
    return PlanDocument.model_validate(document)


def failures_of(name: str, change: Change, **options: Any) -> tuple[str, ...]:
    graph, plan = plan_of(name, **options)
    return verify_pipeline(staged_of(graph, edited(plan, change))).failures


@pytest.mark.parametrize(
    "name", ["bert_tiny", "gpt_tiny", "llama_tiny", "mlp", "moe_tiny", "resnet18_tiny", "vit_tiny"]
)
@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (1, 3), (3, 1)])
def test_a_right_pipeline_is_ok(name: str, stages: int, micro_batches: int) -> None:
    graph, plan = plan_of(name, stages, micro_batches)
    verdict = verify_pipeline(staged_of(graph, plan))
    assert (verdict.failures, verdict.unproved) == ((), ())
    assert (verdict.stages, verdict.micro_batches, verdict.devices) == (stages, micro_batches, 4 * stages)
    alone = verify_program(program_of(plan, graph))
    assert verdict.values == micro_batches * alone.values
    assert verdict.gradients == micro_batches * alone.gradients
    assert verdict.parameters >= alone.parameters
    assert verdict.checked == alone.checked


@pytest.mark.parametrize("name", ["gpt4", "llama_tiny"])
def test_recomputed_blocks_and_passes_without_training(name: str) -> None:
    for options in ({"recompute": True}, {"training": False}):
        graph, plan = plan_of(name, 2, 3, profile="a100-80", **options)
        verdict = verify_pipeline(staged_of(graph, plan))
        assert (verdict.failures, verdict.unproved) == ((), ())
        again = sum(len(b) for b in plan.schedule.recompute)
        assert verdict.values >= 3 * (len(graph.ops) + again) - 3 * 8  # some operators make no number
    assert plan_of(name, 2, 3, profile="a100-80", recompute=True)[1].schedule.recompute


def test_what_is_recomputed_is_not_there_in_between() -> None:
    """Without running a block again, the backward pass finds nothing of what is inside."""
    graph, plan = plan_of("gpt4", 2, 2, recompute=True)
    whole = staged_of(graph, plan)
    inside = plan.schedule.recompute[0][1]
    stage = whole.chunk_of[inside]
    before = PipelineProof(whole)
    part = whole.chunks[stage]
    run = part.instructions("backward")
    left = tuple(i for i in run if not (isinstance(i, Run) and not i.backward and i.op == inside))
    assert len(left) < len(run)
    proof = PipelineProof(with_chunk(whole, stage, replace(part, runs={**part.runs, "backward": left})))
    proof.deaths = before.deaths  # values live as long as the right program says
    assert any(inside in f for f in proof.run().failures)


def test_an_operator_in_an_earlier_stage_reads_what_was_never_sent() -> None:
    graph, plan = plan_of("gpt_tiny")
    late = [op.name for op in graph.ops if plan.operators[op.name].stage == 1 and op.type == "MatMul"]
    found = failures_of("gpt_tiny", lambda d: d["operators"][late[0]].update(stage=0))
    made = next(t for t in graph.op(late[0]).inputs if t in plan.operators)
    assert any(late[0] in f and made in f and "stage 1 makes and never sends to stage 0" in f for f in found)


def test_an_operator_reads_a_parameter_that_its_stage_does_not_hold() -> None:
    found = failures_of("gpt_tiny", lambda d: d["parameters"][TABLE].update(stages=[0]))
    assert any(TABLE in f and "stage 1" in f and "the stages that hold the parameter are 0" in f for f in found)


GROUPS: dict[str, Callable[[list[list[int]]], list[list[int]]]] = {
    "one missing": lambda g: g[1:],
    "counted twice": lambda g: [*g, *g],
    "a rank alone": lambda g: [g[0][:1], *g[1:]],
    "over the wrong stages": lambda g: [[a, a + 4] for a, _ in g],
    "other places": lambda g: [[a, (b + 1) % 4 + 4] for (a, b) in g],
    "ranks that are not there": lambda g: [[r + 100 for r in g[0]], *g[1:]],
}


@pytest.mark.parametrize("kind", GROUPS)
def test_sums_over_wrong_groups_are_found(kind: str) -> None:
    def change(d: dict[str, Any]) -> None:
        across = d["parameters"][TABLE]["across"]
        across["groups"] = GROUPS[kind](across["groups"])

    graph, plan = plan_of("gpt_tiny", 3)
    across = plan.parameters[TABLE].across
    assert across is not None
    assert any(TABLE in f for f in verify_pipeline(staged_of(graph, edited(plan, change))).failures)


def test_a_sum_between_stages_that_is_left_out_is_found() -> None:
    found = failures_of("gpt_tiny", lambda d: d["parameters"][TABLE].update(across=None))
    assert any(TABLE in f and "stages 0, 1 make parts of it, which are never summed" in f for f in found)


def test_a_sum_of_what_stands_in_one_stage_is_found() -> None:
    graph, plan = plan_of("gpt_tiny")
    alone = next(n for n, p in plan.parameters.items() if p.stages == [0] and p.gradient is not None)

    def change(d: dict[str, Any]) -> None:
        d["parameters"][alone]["across"] = d["parameters"][TABLE]["across"]

    assert any(alone in f for f in verify_pipeline(staged_of(graph, edited(plan, change))).failures)


def with_chunk(pipeline: Staged, chunk: int, part: ChunkProgram) -> Staged:
    chunks = list(pipeline.chunks)
    chunks[chunk] = part
    return replace(pipeline, chunks=tuple(chunks))


@pytest.mark.parametrize("phase", ["forward", "backward"])
@pytest.mark.parametrize("sent", [True, False])
def test_a_transfer_that_is_left_out_is_found(phase: Phase, sent: bool) -> None:
    graph, plan = plan_of("gpt_tiny")
    whole = staged_of(graph, plan)
    stage = int((phase == "forward") != sent)
    part = whole.chunks[stage]
    transfers = part.sends if sent else part.receives
    assert transfers[phase]
    for left_out in transfers[phase]:
        fewer = {**transfers, phase: tuple(t for t in transfers[phase] if t != left_out)}
        changed = replace(part, sends=fewer) if sent else replace(part, receives=fewer)
        found = verify_pipeline(with_chunk(whole, stage, changed)).failures
        assert any(left_out.tensor in f for f in found)
        if sent:
            assert any(f"stage {stage} never sends" in f for f in found)


def with_events(pipeline: Staged, stage: int, change: Callable[[list[Event]], list[Event]]) -> Staged:
    stages = list(pipeline.passes.stages)
    stages[stage] = tuple(change(list(stages[stage])))
    return replace(pipeline, passes=Passes(tuple(stages), pipeline.passes.holder))


def swapped(events: list[Event]) -> list[Event]:
    """Micro-batches 1 and 2 in the other order."""
    other = {1: 2, 2: 1}
    passes = ("forward", "backward")
    return [replace(e, micro_batch=other.get(e.micro_batch, e.micro_batch)) if e.phase in passes else e for e in events]


def early(events: list[Event]) -> list[Event]:
    """The end of the step before the last micro-batch's backward pass."""
    last = max(i for i, e in enumerate(events) if e.phase == "backward")
    return [*events[:last], events[-1], *(e for e in events[last:] if e.phase != "end")]


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("change", [swapped, early])
def test_micro_batches_in_another_order_and_early_ends_are_found(
    stage: int, change: Callable[[list[Event]], list[Event]]
) -> None:
    graph, plan = plan_of("gpt_tiny")
    whole = staged_of(graph, plan)
    assert verify_pipeline(with_events(whole, stage, change)).failures


@pytest.mark.parametrize("stage", [0, 1])
def test_stages_that_wait_for_each_other_are_named(stage: int) -> None:
    graph, plan = plan_of("gpt_tiny")
    whole = staged_of(graph, plan)

    def backward_first(events: list[Event]) -> list[Event]:
        begin, *run, end = events
        return [begin, *sorted(run, key=lambda e: e.phase), end]

    found = verify_pipeline(with_events(whole, stage, backward_first)).failures
    assert found


class Faulty(PipelineProof):
    """Gradients of micro-batch 1 in stage 0 are added `times` instead of once."""

    times = 1

    def _accumulate(self, cell: Any, stage: int, micro_batch: int) -> None:
        if (stage, micro_batch) != (0, 1):
            super()._accumulate(cell, stage, micro_batch)
            return
        kept = dict(cell.devices.gradients), dict(cell.sums), dict(cell.added)
        for _ in range(self.times):
            cell.devices.gradients, cell.sums, cell.added = (dict(x) for x in kept)
            super()._accumulate(cell, stage, micro_batch)
        cell.devices.gradients.clear()


@pytest.mark.parametrize(("times", "wrong"), [(0, True), (1, False), (2, True)])
def test_gradients_are_added_once_for_every_micro_batch(times: int, wrong: bool) -> None:
    graph, plan = plan_of("gpt_tiny")
    proof = Faulty(staged_of(graph, plan))
    proof.times = times
    found = proof.run().failures
    assert bool(found) == wrong
    if wrong:
        trained = [n for n, p in plan.parameters.items() if 0 in p.stages]
        assert all(any(f"gradient of {n} in stage 0" in f for f in found) for n in trained)


class Mixed(PipelineProof):
    """Stage 1 reads for micro-batch 2 what was sent for micro-batch 1."""

    def __init__(self, pipeline: Staged) -> None:
        super().__init__(pipeline)
        self.before: dict[Any, Any] = {}

    def _send(self, proof: Any, transfer: Any, event: Event) -> None:
        super()._send(proof, transfer, event)
        if event.micro_batch == 2 and not transfer.gradient:
            link = self.links[transfer]
            link[-1] = replace(link[-1], shards=self.before[transfer])
        elif not transfer.gradient:
            self.before[transfer] = self.links[transfer][-1].shards


def test_activations_of_another_micro_batch_are_found() -> None:
    graph, plan = plan_of("gpt_tiny")
    found = Mixed(staged_of(graph, plan)).run().failures
    assert any("stage 1, micro-batch 2" in f and "from stage 0" in f for f in found)


def test_one_redistribution_less_is_found_in_every_stage() -> None:
    graph, plan = plan_of("gpt_tiny")
    whole = staged_of(graph, plan)
    for stage, part in enumerate(whole.chunks):
        for phase, run in part.runs.items():
            needed = {n for n, t in graph.tensors.items() if t.role is not Role.CONSTANT}  # shapes are not read
            moves = [n for n, i in enumerate(run) if isinstance(i, Redistribute | Load) and i.tensor in needed]
            for n in moves[:: max(1, len(moves) // 3)]:
                fewer = replace(part, runs={**part.runs, phase: (*run[:n], *run[n + 1 :])})
                assert verify_pipeline(with_chunk(whole, stage, fewer)).failures, (stage, phase, run[n])


def test_a_redistribution_that_does_something_else_is_a_failure() -> None:
    """Its rounding is one figure for the whole tensor."""
    mesh = DeviceMesh((MeshAxis("x", 2),))
    value = np.arange(8.0).reshape(2, 4)
    wrong = difference((value, value + 1), Layout.replicated(2), value, mesh, summed((value, value)))
    assert "rank 1" in wrong.reason


def test_the_gradient_of_a_step_is_that_of_the_whole_batch() -> None:
    """The loss is a mean over samples: so is the gradient over micro-batches."""
    count = 4
    small, plan = plan_of("gpt_tiny", 2, count)
    size = next(s[0] for t in small.inputs if (s := small.tensors[t].shape))
    large = in_double(graph_of("gpt_tiny", size * count))
    proof = PipelineProof(staged_of(small, plan))
    proof.run()
    fed = [proof.inputs(m) for m in range(count)]
    values: dict[str, Array] = {t: proof.first.value(t) for t in proof.first.sources}
    values = {t: v for t, v in values.items() if large.tensors[t].role is Role.PARAMETER}
    values |= {t: np.concatenate([x[t] for x in fed]) for t in fed[0]}
    found = gradients(large, values, run_ops(large, values), set(proof.totals.expected))
    for name, expected in found.items():
        scale = max(float(np.abs(expected).max()), 1e-6)
        np.testing.assert_allclose(proof.totals.expected[name], expected, atol=1e-10 * scale, rtol=1e-9)


def test_of_many_micro_batches_as_many_are_run_as_fill_and_empty_every_stage() -> None:
    graph, plan = plan_of("gpt_tiny", 2, 64)
    work = ExecutionCost(1.0, 1, 1)
    assert fewest_micro_batches(plan) == 3
    assert [affordable(plan, work, Budget(f), whole=False) for f in (2.0, 3.0, 9.5, 100.0)] == [0, 3, 9, 64]
    assert affordable(plan, work, Budget(2.0), whole=True) == 64
    verdict = verify_pipeline(staged_of(graph, plan, 3))
    assert verdict.ok
    assert verdict.micro_batches == 3
    for stage in range(2):
        phases = [e.phase for e in passes("1f1b", 2, 1, 3, training=True).stages[stage]]
        assert phases[1 : 3 - stage] == ["forward"] * (2 - stage)
        assert phases[-3:] == ["backward", "backward", "end"] if stage == 0 else ["forward", "backward", "end"]
    assert labelled(plan, whole=True, gradients=True, stages=2, micro_batches=3).verification == "sibling"
    assert labelled(plan, whole=True, gradients=True, stages=2, micro_batches=64).verification == "full"


def test_a_plan_without_parts_is_executed_as_ever() -> None:
    graph = graph_of("gpt_tiny")
    planned = make_plan(graph, Request(4, load_profile("alpha-beta"), Settings(training=True)))
    plan = describe(planned, bind={}, batch=None)
    assert not in_parts(plan)
    one, parts = verify_program(planned.program), verify_pipeline(staged_of(graph, plan))
    assert (one.verdict, one.values, one.gradients, one.parameters) == (
        parts.verdict,
        parts.values,
        parts.gradients,
        parts.parameters,
    )


def test_each_micro_batch_has_data_of_its_own() -> None:
    graph, plan = plan_of("gpt_tiny")
    proof = PipelineProof(staged_of(graph, plan))
    drawn = [proof.inputs(m) for m in range(4)]
    assert all(drawn)
    for t in drawn[0]:
        assert not any(np.array_equal(drawn[0][t], other[t]) for other in drawn[1:])
    assert set(drawn[0]) <= set(random_tensors(proof.graph, 0))


def test_verify_says_what_was_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(SAMPLES / "gpt_tiny.onnx")
    options = ("--devices", "4", "--stages", "2", "--micro-batches", "4", "--no-cache", "--out", str(tmp_path))
    assert main(["search", model, *options]) == 0
    plan = tmp_path / "plan.json"
    capsys.readouterr()
    assert main(["verify", str(plan), model, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["stages"], found["micro_batches"], found["devices"]) == (2, 4, 4)
    written = json.loads(plan.read_text(encoding="utf-8"))
    assert (written["verification"], written["executed"]["micro_batches"]) == ("full", 4)
    assert main(["verify", str(plan), model]) == 0
    assert "2 stages and 4 micro-batches" in capsys.readouterr().out


def test_a_sibling_runs_in_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that is too large is cut, and the rest still runs as a pipeline."""
    graph, plan = plan_of("gpt4", 2, 8)
    small = Budget(flops=1e3)
    monkeypatch.setattr(import_module("planner.verify.verification"), "TRAINING", small)
    found = verify(plan, graph)
    assert found.sibling
    assert (found.verdict, found.stages, found.micro_batches) == ("ok", 2, 3), found.failures
