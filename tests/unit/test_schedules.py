"""A plan says in which order its micro-batches run, and which chunks of the model its stages hold; it is executed,
shown, priced again and emitted so, and faults in what it says are found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.cost_models.pipeline import holders_of_chunks, stage_numbers
from planner.emit.registry import TARGETS
from planner.frontends import import_bytes
from planner.ir import Graph
from planner.planning import PlanDocument
from planner.planning.consistency import contradiction
from planner.planning.programs import program_of
from planner.report.timeline import pipeline_run
from planner.report.trace import trace_document
from planner.verify.derive import differences
from planner.verify.pipeline import verify_pipeline
from planner.verify.pipelined import affordable, pipeline_of
from planner.verify.work import Budget, ExecutionCost

SIZES = {"layers": 4, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8, "batch": 16}
TABLE = "transformer.wte.weight"
LOOKUP = "transformer.wte.gather"
STRATEGIES = {
    "gpipe": "megatron:pp=2,schedule=gpipe,micro_batch=2",
    "zb-h1": "megatron:pp=2,tp=2,schedule=zb-h1,micro_batch=4",
    "interleaved": "megatron:pp=2,vpp=2,micro_batch=2",
    "zb-v": "megatron:pp=2,schedule=zb-v,micro_batch=2",
}
Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("schedules")
    (out / "gpt4.onnx").write_bytes(build("gpt", SIZES).SerializeToString())
    for order, strategy in STRATEGIES.items():
        options = ["--devices", "4", "--batch", "16", "--strategy", strategy, "--no-cache", "--out", str(out / order)]
        assert main(["search", str(out / "gpt4.onnx"), *options]) == 0
    return out


def plan_of(folder: Path, order: str) -> PlanDocument:
    return PlanDocument.model_validate_json((folder / order / "plan.json").read_bytes())


@lru_cache
def graph_of(batch: int) -> Graph:
    return import_bytes(build("gpt", {**SIZES, "batch": batch}).SerializeToString(), name="gpt4")


def edited(plan: PlanDocument, change: Change) -> PlanDocument:
    document = json.loads(plan.model_dump_json(by_alias=True))
    change(document)
    return PlanDocument.model_validate(document)


@pytest.mark.parametrize("order", STRATEGIES)
def test_the_plan_says_the_order_and_the_chunks(folder: Path, order: str) -> None:
    plan = plan_of(folder, order)
    chunks = 2 if order in ("interleaved", "zb-v") else 1
    assert (plan.schedule.order, plan.schedule.chunks, plan.schedule.stages) == (order, chunks, 2)
    assert {len(s.chunks) for s in plan.stages} == {chunks}
    for stage in plan.stages:
        assert stage.forward_s == pytest.approx(sum(c.forward_s for c in stage.chunks))
        assert all(0 < c.weights_s < c.backward_s for c in stage.chunks)
    numbers = [plan.chunk(name) for name in plan.operators]
    assert set(numbers) == set(range(2 * chunks))
    layers = Counter((plan.chunk(n), o.module.split(".")[2]) for n, o in plan.operators.items() if ".h." in o.module)
    assert len({layer for _, layer in layers}) == 4
    assert len(layers) == 4  # no layer in two chunks


@pytest.mark.parametrize("order", STRATEGIES)
def test_the_plan_is_executed_in_its_order(folder: Path, order: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["verify", str(folder / order), str(folder / "gpt4.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["stages"], found["gradients"] > 0) == ("ok", 2, True)
    assert plan_of(folder, order).verification == "full"


@pytest.mark.parametrize("order", STRATEGIES)
def test_the_plan_is_priced_again_to_the_last_digit(
    folder: Path, order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    model = str(folder / "gpt4.onnx")
    assert main(["evaluate", model, "--plan", str(folder / order / "plan.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plan = plan_of(folder, order)
    assert (found["step_time_s"], found["peak_memory_bytes"]) == (plan.cost.step_time_s, plan.cost.peak_memory_bytes)


@pytest.mark.parametrize("order", STRATEGIES)
def test_the_picture_takes_as_long_as_the_plan_says(folder: Path, order: str) -> None:
    """What happens once a step, and outside the model, stands behind the micro-batches."""
    plan = plan_of(folder, order)
    run = pipeline_run(plan)
    assert run is not None
    end = max(p[4] for p in run.passes)
    outside = plan.cost.step_time_s - end - max(s.once_s for s in plan.stages)
    assert 0 <= outside < plan.cost.step_time_s - end
    count = run.micro_batches * plan.schedule.chunks * 2
    kinds = Counter(kind for _, kind, *_ in run.passes)
    split = order.startswith("zb")
    assert kinds == ({"F": count, "B": count, "W": count} if split else {"F": count, "B": count})
    names = {e["name"].rstrip(" 0123456789") for e in trace_document(plan)["traceEvents"]}
    assert ("weight gradients" in names) == split


def test_the_v_holds_both_ends_of_the_model_in_one_stage(folder: Path) -> None:
    """So a table that stands at both is summed by nobody, where other orders sum it over the stages."""
    assert plan_of(folder, "zb-v").parameters[TABLE].across is None
    assert plan_of(folder, "interleaved").parameters[TABLE].across is not None
    assert plan_of(folder, "zb-v").parameters[TABLE].stages == [0]


@pytest.mark.parametrize("order", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"])
def test_holders_are_the_inverse_of_stage_numbers(order: str) -> None:
    chunks = {"interleaved": 3, "zb-v": 2}.get(order, 1)
    numbers = stage_numbers(order, 4, chunks)
    holders = holders_of_chunks(order, 4, chunks)
    assert sorted(numbers.ravel().tolist()) == list(range(4 * chunks))
    assert all(holders[k] == stage for stage, row in enumerate(numbers.tolist()) for k in row)


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "no order for the chunks": (lambda d: d["schedule"].update(order="1f1b"), "does not run 2 chunks"),
    "other chunks": (lambda d: d["schedule"].update(chunks=3), "zb-v does not run 3 chunks"),
    "more chunks than operators": (lambda d: d["schedule"].update(chunks=5000), "one per operator"),
    "a chunk that is not there": (lambda d: d["operators"][LOOKUP].update(chunk=2), "expected less than 2"),
    "times of one chunk of two": (lambda d: d["stages"][0]["chunks"].pop(), "stages[0].chunks: expected 2"),
    "no times of chunks": (lambda d: d["stages"][1].update(chunks=[]), "stages[1].chunks: expected 2"),
    "more gradients of weights than backward": (
        lambda d: d["stages"][0]["chunks"][0].update(weights_s=9.0),
        "is a part",
    ),
    "a chunk without operators": (
        lambda d: [o.update(chunk=0) for o in d["operators"].values() if o["stage"] == 1],
        "found none in chunk 1 of stage 1",
    ),
    "data that flows back": (lambda d: d["operators"][LOOKUP].update(chunk=1), "of chunk 3"),
}


@pytest.mark.parametrize("fault", CONTRADICTIONS)
def test_what_cannot_be_is_refused(folder: Path, fault: str) -> None:
    change, expected = CONTRADICTIONS[fault]
    assert expected in (contradiction(edited(plan_of(folder, "zb-v"), change)) or "")


def test_another_order_is_no_plan_of_the_strategy(folder: Path) -> None:
    plan = plan_of(folder, "gpipe")
    messages = {
        "1f1b": "stages[0].chunks: expected 0, as of schedule.order, found 1",
        "zb-h1": "expected gpipe with 1 chunk(s) of the model per stage, as of search.request.strategy, found zb-h1",
    }
    for order, message in messages.items():
        changed = plan.schedule.model_copy(update={"order": order})
        (found,) = differences(plan.model_copy(update={"schedule": changed}), graph_of(4))
        assert message in str(found)


def test_an_operator_in_another_chunk_is_found_by_execution(folder: Path) -> None:
    plan = plan_of(folder, "interleaved")
    moved = next(n for n, o in plan.operators.items() if o.chunk == 1 and o.stage == 0 and o.type == "MatMul")
    wrong = edited(plan, lambda d: d["operators"][moved].update(chunk=0))
    graph = graph_of(4)
    failures = verify_pipeline(pipeline_of(wrong, program_of(wrong, graph), 4)).failures
    assert any(moved in f and "never sends to chunk 0 (stage 0)" in f for f in failures)


@pytest.mark.parametrize("order", STRATEGIES)
@pytest.mark.parametrize("target", ["megatron", "mindformers", "mindspore", "dtensor", "hyper-parallel"])
def test_targets_say_the_order_or_refuse_it(
    folder: Path, target: str, order: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    capsys.readouterr()
    code = main(["emit", str(folder / order), "--target", target, "--out", str(tmp_path)])
    said = capsys.readouterr()
    if order not in TARGETS[target].orders:
        assert code != 0
        assert f"run in the order {order}; {target} has" in said.err
        return
    assert code == 0, said.err
    texts = "\n".join(p.read_text(encoding="utf-8", errors="replace") for p in tmp_path.rglob("*") if p.is_file())
    told = {
        ("megatron", "interleaved"): "--pipeline-model-parallel-layout 'Et|t|t|tL'",
        ("mindformers", "interleaved"): "pp_interleave_num: 2",
        ("mindspore", "gpipe"): 'scheduler="gpipe"',
    }.get((target, order), "")
    assert told in texts
    if target == "dtensor":
        assert f"({order})" in said.out + said.err + texts


def test_a_target_that_cannot_be_told_the_order_is_refused_before_the_search(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--devices", "4", "--batch", "16", "--target", "dtensor", "--strategy", STRATEGIES["zb-v"], "--no-cache"]
    assert main(["search", str(folder / "gpt4.onnx"), *options]) == 2
    assert "--target dtensor cannot express the schedule zb-v (it has 1f1b, gpipe)" in capsys.readouterr().err


def test_torch_interleaves_rounds_alone(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Five micro-batches through two stages are two rounds of three and two, which torch refuses when it starts."""
    model = tmp_path / "llama.onnx"
    sizes = {"layers": 4, "hidden": 32, "heads": 2, "vocab": 64, "seq": 8, "batch": 20}
    model.write_bytes(build("llama", sizes).SerializeToString())
    for micro_batch, code in ((2, 3), (1, 0)):
        strategy = f"megatron:pp=2,vpp=2,micro_batch={micro_batch}"
        options = [
            "--devices",
            "4",
            "--batch",
            "20",
            "--strategy",
            strategy,
            "--no-cache",
            "--force",
            "--out",
            str(tmp_path),
        ]
        assert main(["search", str(model), *options]) == 0
        capsys.readouterr()
        out = tmp_path / f"titan{micro_batch}"
        assert main(["emit", str(tmp_path), "--target", "torchtitan", "--out", str(out)]) == code
        said = capsys.readouterr().err
        if code:
            assert "5 micro-batches through 2 stages" in said
        else:
            assert "'Interleaved1F1B'" in (out / "planner_torchtitan.py").read_text(encoding="utf-8")


def test_gpipe_is_executed_on_as_many_micro_batches_as_memory_holds(folder: Path) -> None:
    """All of them are in flight at once, where 1F1B has as many as stages."""
    plan = plan_of(folder, "gpipe").model_copy(deep=True)
    plan.schedule.micro_batches = 64
    work, budget = ExecutionCost(1.0, 1, 1 << 20, 1 << 20), Budget(1e9, activation_bytes=16 << 20, held_bytes=16 << 20)
    assert affordable(plan, work, budget, whole=False) == 16
    assert affordable(plan, ExecutionCost(1.0, 1, 5 << 20, 5 << 20), budget, whole=False) == 3
    assert (
        affordable(plan, ExecutionCost(1.0, 1, 6 << 20, 6 << 20), budget, whole=False) == 0
    )  # stages would not fill up
    plan.schedule.order = "1f1b"
    assert affordable(plan, work, budget, whole=False) == 64
    plan.schedule.micro_batches = 10**9
    assert affordable(plan, ExecutionCost(1.0, 1, 9 << 20, 9 << 20), budget, whole=False) == 0  # at once


def test_schedules_are_refused_where_no_pass_runs_backward(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder / "gpt4.onnx")
    options = ["--devices", "4", "--batch", "16", "--mode", "inference", "--strategy", STRATEGIES["zb-v"], "--no-cache"]
    assert main(["search", model, *options]) != 0
    assert "schedule=zb-v" in capsys.readouterr().err
