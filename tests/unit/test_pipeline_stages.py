"""Plans cut into pipeline stages: where the cuts lie, what stages cost and hold, and what the plan file says."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import load_profile
from planner.builder import build
from planner.cli.main import main
from planner.errors import InfeasibleError, InputError
from planner.frontends import import_bytes
from planner.lowering import Convert
from planner.planning import Planned, Request, make_plan, read_plan
from planner.planning.breakdown import convert_cost
from planner.planning.pipeline import Pipelined, cut_points, pipelined, stage_of_operators
from planner.pricing import Settings

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


def planned(kind: str = "gpt", devices: int = 2, **sizes: int) -> Planned:
    base = {"gpt": {"layers": 4, "hidden": 256, "heads": 4, "vocab": 512, "seq": 64, "batch": 4}}.get(kind, {})
    graph = import_bytes(build(kind, {**base, **sizes}).SerializeToString(), name=kind)
    return make_plan(graph, Request(devices, load_profile("a100-80"), Settings(training=True)))


@pytest.fixture(scope="module")
def gpt() -> Planned:
    return planned()


def slowest(work: list[float], crossing: list[float], points: tuple[int, ...]) -> float:
    ends = [0, *points, len(work)]
    return max(sum(work[a:b]) + (crossing[a] if a else 0.0) for a, b in pairwise(ends))


@given(st.data())
def test_no_other_cuts_have_a_faster_slowest_stage(data: st.DataObject) -> None:
    figure = st.integers(0, 9).map(float)
    work = data.draw(st.lists(figure, min_size=3, max_size=9))
    crossing = data.draw(st.lists(figure, min_size=len(work), max_size=len(work)))
    stages = data.draw(st.integers(2, 4))
    ways = [
        p
        for p in combinations(range(1, len(work)), stages - 1)
        if all(sum(work[a:b]) > 0 for a, b in pairwise([0, *p, len(work)]))
    ]
    if not ways:
        with pytest.raises(InputError, match="use fewer"):
            cut_points(work, np.array(crossing), stages)
        return
    found = cut_points(work, np.array(crossing), stages)
    assert found in ways
    best = min(slowest(work, crossing, p) for p in ways)
    assert slowest(work, crossing, found) == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_data_flows_to_later_stages_only_and_every_stage_computes(gpt: Planned, stages: int) -> None:
    found = pipelined(gpt, stages, 8, None)
    graph = gpt.priced.graph
    for op in graph.ops:
        for t in op.inputs:
            if t in graph.producers:
                assert found.stage_of[graph.producers[t].name] <= found.stage_of[op.name]
    assert set(found.stage_of.values()) == set(range(stages))
    assert all(s > 0 for s in found.run.busy_s)


def test_a_layer_is_not_cut_from_its_bias() -> None:
    found = pipelined(planned("mlp", layers=4, hidden=4096, features=64, classes=32, batch=64), 3, 4, None)
    for i in range(4):
        mine = [op.name for op in found.planned.priced.graph.ops if op.module == f"layers.{i}"]
        assert len(mine) == 2
        assert len({found.stage_of[n] for n in mine}) == 1


def test_what_is_computed_from_weights_stands_with_its_reader(gpt: Planned) -> None:
    graph = gpt.priced.graph
    turned = next(op for op in graph.ops if op.type == "Transpose" and op.inputs[0] == "transformer.wte.weight")
    reader = graph.consumers[turned.outputs[0]][0][0]
    position = [op.name for op in graph.ops].index(reader.name)
    stage_of = stage_of_operators(graph, [position])
    assert stage_of[turned.name] == stage_of[reader.name] == 1


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stages_share_the_work_of_a_micro_batch(gpt: Planned, stages: int) -> None:
    found = pipelined(gpt, stages, 4, None)
    unit = gpt.priced.machine.unit_s
    parts = gpt.parts
    passes = parts.compute_forward + parts.compute_backward + parts.inside_operators
    once = (Convert,)
    passes += sum(
        convert_cost(gpt.priced, c)
        for c in gpt.program.converts()
        if isinstance(c, once) and c.tensor not in gpt.priced.parameter_nodes
    )
    assert sum(found.run.busy_s) / 4 == pytest.approx(passes * unit)


def test_one_stage_and_one_micro_batch_are_the_plan(gpt: Planned) -> None:
    found = pipelined(gpt, 1, 1, None)
    assert found.memory == (gpt.peak_memory_bytes,)
    assert found.step_time_s == pytest.approx(gpt.objective_s)
    assert found.run.bubble_fraction == 0


def test_more_micro_batches_shrink_the_bubble(gpt: Planned) -> None:
    bubbles = [pipelined(gpt, 4, m, None).run.bubble_fraction for m in (1, 4, 16, 64)]
    assert bubbles == sorted(bubbles, reverse=True)
    assert bubbles[0] >= 0.75


def test_early_stages_hold_more_micro_batches(gpt: Planned) -> None:
    found: Pipelined = pipelined(gpt, 4, 8, None)
    assert found.run.in_flight == (4, 3, 2, 1)
    assert found.memory[1] > found.memory[2]


def test_a_stage_that_does_not_fit_is_named(gpt: Planned) -> None:
    found = pipelined(gpt, 4, 8, None)
    worst = max(range(4), key=found.memory.__getitem__)
    with pytest.raises(InfeasibleError, match=f"stage {worst} of 4 holds"):
        pipelined(gpt, 4, 8, found.memory[worst] - 1)


def test_more_stages_than_operators_are_refused() -> None:
    with pytest.raises(InputError, match="--stages 64"):
        pipelined(planned("mlp", layers=2, hidden=16, features=16, classes=8, batch=4), 64, 4, None)


def search(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    model = str(SAMPLES / "gpt_tiny.onnx")
    assert main(["search", model, "--no-cache", "--out", str(folder), "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_plan_file_says_stages_and_can_be_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--devices", "8", "--stages", "2", "--micro-batches", "4", "--batch", "32")
    document = search(tmp_path, capsys, *options)
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.devices, plan.mesh.devices, plan.cluster.devices) == (8, 4, 8)
    assert (plan.schedule.stages, plan.schedule.micro_batches, plan.schedule.order) == (2, 4, "1f1b")
    assert plan.model.batch == 8
    assert [sum(o.stage == s for o in plan.operators.values()) for s in range(2)] == [s.operators for s in plan.stages]
    assert (document["devices"], document["batch"], document["stages"]) == (8, 32, 2)
    assert document["step_time_s"] == plan.cost.step_time_s
    assert document["peak_memory_bytes"] == max(s.peak_memory_bytes for s in plan.stages)
    assert main(["verify", str(tmp_path / "plan.json"), str(SAMPLES / "gpt_tiny.onnx")]) == 0


def test_micro_batches_alone_accumulate_gradients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = search(tmp_path, capsys, "--devices", "4", "--micro-batches", "4", "--batch", "64")
    plan = read_plan(tmp_path / "plan.json")
    assert (plan.schedule.stages, plan.schedule.micro_batches, plan.model.batch) == (1, 4, 16)
    assert document["bubble"] == 0
    assert 3 < document["step_time_s"] / plan.cost.objective_s < 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--devices", "8", "--stages", "3"), "expected a divisor of --devices 8"),
        (("--devices", "8", "--stages", "2", "--micro-batches", "3"), "expected a divisor of the batch, 8"),
        (("--devices", "8", "--stages", "2", "--top-k", "2"), "one at a time"),
    ],
)
def test_parts_that_do_not_divide_are_a_usage_error(
    tmp_path: Path, options: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["search", str(SAMPLES / "gpt_tiny.onnx"), "--out", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", [("schedule", "stages", 3), ("operators", "lm_head.matmul", {"stage": 5})])
def test_stages_that_do_not_agree_are_refused(
    tmp_path: Path, change: tuple[str, str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    search(tmp_path, capsys, "--devices", "4", "--stages", "2")
    path = tmp_path / "plan.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    table, key, value = change
    if isinstance(value, dict):
        document[table][key] |= value
    else:
        document[table][key] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    assert main(["verify", str(path), str(SAMPLES / "gpt_tiny.onnx")]) == 3
    assert "at stages" in capsys.readouterr().err


def test_layers_stay_whole_where_there_are_enough(gpt: Planned) -> None:
    found = pipelined(gpt, 4, 8, None)
    for layer in range(4):
        inside = [op.name for op in gpt.priced.graph.ops if f".h.{layer}." in f".{op.module}."]
        assert len({found.stage_of[n] for n in inside}) == 1, layer
