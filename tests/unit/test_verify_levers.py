"""Laws of how a step is run: whatever levers are pulled together, the gradients are those of the whole model.

`python -m tests.corpus.levers` asks the same of every combination.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from onnx import parser

from planner.cli.main import main
from planner.ir import Layout, Reduction
from planner.lowering import Free, Host, Redistribute, Run, Staged
from planner.lowering.run_as import deferred
from planner.planning.programs import program_of
from planner.redistribute import RedistributionStep, StepKind
from planner.verify.pipeline import verify_pipeline
from planner.verify.pipelined import pipeline_of
from planner.verify.sibling import Siblings
from planner.verify.work import Budget, work_of
from tests.corpus.levers import LEVERS, combinations, covering, model_of, plan_of, strategy, wrong_with

COUNTS = {"gpt": 13, "moe": 9}  # dense, with one table at both ends, and with experts
CASES = [(m, c) for m, n in COUNTS.items() for c in islice(covering(combinations(m), tries=500), n)]
PLAIN = {
    "stages": "pp=1", "micro_batches": "2", "recompute": "recompute=none", "zero": "zero=1", "copies": "copies=1",
    "offload": "offload=0", "ranks": "dp=2",
}  # fmt: skip


@lru_cache(maxsize=32)
def pipeline(model: str = "gpt", **levers: str) -> Staged:
    """With the plain value of every lever that is not given."""
    plan, graph = made(model, **levers)
    return pipeline_of(plan, program_of(plan, graph), plan.schedule.micro_batches)


@lru_cache(maxsize=32)
def made(model: str = "gpt", **levers: str) -> Any:
    found = plan_of(model, tuple({**PLAIN, **levers}[k] for k in LEVERS))
    assert not isinstance(found, str), found
    return found


def listed(found: Staged, phase: Any) -> list[Any]:
    return [i for chunk in found.chunks for i in chunk.instructions(phase)]


def parameters(found: Staged, phase: Any, *, gradient: bool) -> list[str]:
    """Those that are redistributed in the phase, or their gradients."""
    moved = (i for i in listed(found, phase) if isinstance(i, Redistribute) and i.gradient == gradient)
    return [i.tensor for i in moved if i.tensor in found.program.final_gradients]


@pytest.mark.parametrize(("model", "levers"), CASES, ids=lambda x: x if isinstance(x, str) else strategy(x)[0])
def test_the_gradients_are_those_of_the_whole_model(model: str, levers: tuple[str, ...]) -> None:
    assert wrong_with(model, levers) == ()


def test_the_sample_shows_every_value_of_every_lever() -> None:
    for at, values in enumerate(LEVERS.values()):
        assert {c[at] for _, c in CASES} == set(values)


def test_what_is_gathered_in_every_pass_is_let_go_and_gathered_again() -> None:
    once, always = pipeline(zero="zero=2"), pipeline(zero="zero=3")
    assert parameters(once, "begin", gradient=False)
    assert not parameters(always, "begin", gradient=False)
    gathered = set(parameters(once, "begin", gradient=False))
    for phase in ("forward", "backward"):
        assert not parameters(once, phase, gradient=False)
        assert set(parameters(always, phase, gradient=False)) == gathered
        assert gathered <= {i.tensor for i in listed(always, phase) if isinstance(i, Free)}


@pytest.mark.parametrize(
    ("zero", "every_pass"), [("zero=0", False), ("zero=1", False), ("zero=2", True), ("zero=3", True)]
)
def test_gradients_are_scattered_in_every_pass_from_zero_2_on(zero: str, every_pass: bool) -> None:
    found = pipeline(zero=zero)
    assert bool(parameters(found, "backward", gradient=True)) == every_pass
    assert bool(parameters(found, "end", gradient=True)) != every_pass or zero != "zero=1"


def test_replicas_are_summed_once_a_step() -> None:
    x, y, rows = ("x", Reduction.SUM), ("y", Reduction.SUM), (("y",), ())
    pending, scattered, stored = Layout(((), ()), (x, y)), Layout(rows, (x,)), Layout(rows)
    steps = (
        RedistributionStep(StepKind.REDUCE_SCATTER, ("y",), pending, scattered, 0),
        RedistributionStep(StepKind.ALL_REDUCE, ("x",), scattered, stored),
    )
    whole = Redistribute("w", True, pending, stored, steps)
    every_pass, once = deferred(whole)
    assert every_pass == replace(whole, target=scattered, steps=steps[:1])
    assert once == replace(whole, source=scattered, steps=steps[1:])
    assert deferred(replace(whole, target=scattered, steps=steps[:1])) == (every_pass, None)
    assert deferred(once) == (None, once)


def test_a_sum_of_which_ranks_keep_their_part_is_scattered_in_every_pass() -> None:
    """A switch may sum over all ranks in less time than it takes to scatter, once; whole gradients are not kept."""
    x, y, rows = ("x", Reduction.SUM), ("y", Reduction.SUM), (("y",), ())
    pending, whole, stored = Layout(((), ()), (x, y)), Layout(((), ())), Layout(rows)
    steps = (
        RedistributionStep(StepKind.ALL_REDUCE, ("x", "y"), pending, whole),
        RedistributionStep(StepKind.SLICE, ("y",), whole, stored, 0),
    )
    every_pass, once = deferred(Redistribute("w", True, pending, stored, steps))
    assert every_pass is not None
    assert [(s.kind, s.axes) for s in every_pass.steps] == [(StepKind.REDUCE_SCATTER, ("y",))]
    assert once is not None
    assert [(s.kind, s.axes) for s in once.steps] == [(StepKind.ALL_REDUCE, ("x",))]
    assert (every_pass.source, every_pass.target, once.target) == (pending, once.source, stored)


@pytest.mark.parametrize("kind", ["selective", "products", "full", "full,recompute_blocks=0.5"])
def test_what_is_run_again_is_let_go_before(kind: str) -> None:
    found = pipeline(recompute=f"recompute={kind}")
    again = [i.op for i in listed(found, "backward") if isinstance(i, Run) and not i.backward]
    freed = {i.tensor for i in listed(found, "forward") if isinstance(i, Free)}
    assert again
    assert freed
    assert freed <= {t for name in again for t in found.program.graph.op(name).outputs}
    blocks = {name.split(".")[2] for name in again}
    assert len(blocks) == (2 if "0.5" in kind else 4)
    if kind == "products":
        products = [n for n in again if found.program.graph.op(n).type == "MatMul"]
        assert len(products) == 4 * (2 + 1), "scores, and the second and the fourth product of each block"


def test_each_stage_runs_as_many_blocks_again_as_it_says() -> None:
    found = pipeline(stages="pp=2", recompute="recompute=full,recompute_layers=1-0", offload="offload_layers=0-2")
    again = [i.op for i in listed(found, "backward") if isinstance(i, Run) and not i.backward]
    assert {name.split(".")[2] for name in again} == {"0"}
    waiting = {i.tensor for i in listed(found, "forward") if isinstance(i, Host)}
    assert {t.split(".")[2] for t in waiting} == {"2", "3"}
    assert verify_pipeline(found).ok


def test_what_waits_in_the_host_comes_back() -> None:
    found = pipeline(offload="offload=0.5")
    gone = {(i.tensor, i.layout) for i in listed(found, "forward") if isinstance(i, Host)}
    back = {(i.tensor, i.layout) for i in listed(found, "backward") if isinstance(i, Host) and i.back}
    assert gone == back
    assert {t.split(".")[2] for t, _ in gone} == {"0", "1"}


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
def test_gradients_of_weights_have_passes_of_their_own(schedule: str) -> None:
    found = pipeline(stages=f"pp=2,schedule={schedule}", micro_batches="4")
    first = {i.op for i in listed(found, "backward") if isinstance(i, Run) and i.part == "values"}
    second = {i.op for i in listed(found, "weights") if isinstance(i, Run) and i.part == "weights"}
    assert first == second
    assert len(first) == 4 * 4 + 1
    assert verify_pipeline(found).ok


def test_copies_share_what_is_gathered_and_pass_together() -> None:
    alone, together = (
        pipeline(zero="zero=3", micro_batches="4"),
        pipeline(zero="zero=3", micro_batches="4", copies="copies=2"),
    )
    one, two = verify_pipeline(alone), verify_pipeline(together)
    assert (one.micro_batches, one.values, one.gradients) == (two.micro_batches, two.values, two.gradients)
    passes = [e for e in together.passes.stages[0] if e.phase == "forward"]
    assert len(passes) == 2
    moved = len(parameters(alone, "forward", gradient=False)) + len(parameters(alone, "backward", gradient=False))
    scattered = len(parameters(alone, "backward", gradient=True))
    assert one.redistributions - two.redistributions == 2 * (moved + scattered)


def test_a_plan_of_one_stage_and_micro_batch_runs_as_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is run again is not kept, which an execution of the bare program would not show."""
    (tmp_path / "gpt.onnx").write_bytes(model_of("gpt", 4, 4))
    options = ["--devices", "4", "--batch", "4", "--strategy", "fsdp:recompute=full", "--no-cache"]
    assert main(["search", str(tmp_path / "gpt.onnx"), *options, "--out", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "plan"), str(tmp_path / "gpt.onnx"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["stages"], found["micro_batches"]) == ("ok", 1, 1)
    assert found["values"] > found["operators"]


@pytest.mark.parametrize(
    "lever",
    [
        "recompute=selective", "recompute=products", "recompute=full,recompute_blocks=0.5",
        "recompute=full,recompute_layers=1",
    ],
)  # fmt: skip
def test_a_sibling_of_one_block_is_run_as_the_plan_says(lever: str) -> None:
    """What is a block is known from the model, though the sibling repeats none."""
    plan, graph = made(recompute=lever, zero="zero=3", offload="offload=0.5")
    whole = program_of(plan, graph)
    small = Siblings(plan, graph, whole).within(Budget(flops=work_of(graph, whole.rules).flops * 0.7))
    assert len(small.graph.ops) < 0.7 * len(graph.ops)
    found = pipeline_of(plan, small.program, 2)
    assert any(isinstance(i, Run) and not i.backward for i in listed(found, "backward"))
    assert any(isinstance(i, Host) for i in listed(found, "forward"))
    assert parameters(found, "backward", gradient=False)
    assert verify_pipeline(found).ok


def test_constants_by_which_rows_of_a_divided_table_are_read_come_before_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table of positions is read by constants alone, so that its rows are made when their unit begins."""
    numbers = ", ".join(["0.5"] * 64)
    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
    step (float[8, 4, 16] x) => (float loss)
    <float[4, 16] table = {{{numbers}}}, float[16, 4] w = {{{numbers}}}, int64[4] positions = {{0, 1, 2, 3}}>
    {{
        before = Relu(x)
        rows = Gather(table, positions)
        moved = Add(before, rows)
        y = MatMul(moved, w)
        loss = ReduceMean<keepdims = 0>(y)
    }}""")
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    search = ["search", str(tmp_path / "model.onnx"), "--devices", "4", "--strategy", "fsdp", "--no-cache"]
    assert main([*search, "--out", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["verify", str(tmp_path / "plan"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"
