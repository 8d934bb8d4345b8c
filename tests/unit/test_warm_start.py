"""A plan made before gives a choice to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from planner.cli.main import main
from planner.cost_models import load_profile
from planner.frontends import import_bytes
from planner.ir import DeviceMesh, Graph
from planner.planning import Planned, Recall, Request, describe, make_plan
from planner.planning.recall import plain_choice
from planner.pricing import Settings
from planner.search.control import Control
from planner.search.evaluate import evaluate
from tests.unit.semantics_model import mlp, transformer


@pytest.fixture(scope="module")
def graph() -> Graph:
    return import_bytes(transformer())


def plan(graph: Graph, *mesh: int, limit: int | None = None, hardware: str = "a100-80", top_k: int = 1) -> Planned:
    devices = DeviceMesh.of(*mesh).devices
    settings = Settings(training=True)
    meshes = (DeviceMesh.of(*mesh),)
    return make_plan(graph, Request(devices, load_profile(hardware), settings, meshes, memory_limit=limit, top_k=top_k))


@pytest.mark.parametrize("mesh", [(4,), (2, 2), (4, 2)])
@pytest.mark.parametrize("hardware", ["a100-80", "alpha-beta"])
@pytest.mark.parametrize("tight", [False, True])
def test_the_plan_of_an_unchanged_request_is_recalled_at_its_cost(
    graph: Graph, mesh: tuple[int, ...], hardware: Literal["a100-80", "alpha-beta"], tight: bool
) -> None:
    free = plan(graph, *mesh, hardware=hardware)
    planned = plan(graph, *mesh, hardware=hardware, limit=free.peak_memory_bytes - 1) if tight else free
    choice = Recall(describe(planned, bind={}, batch=None)).choice(planned.priced)
    assert choice is not None
    assert evaluate(planned.priced.problem, choice) == planned.solution.cost


def test_another_number_of_devices_keeps_the_roles(graph: Graph) -> None:
    small, large = plan(graph, 2, 2), plan(graph, 4, 2)
    choice = Recall(describe(small, bind={}, batch=None)).choice(large.priced)
    assert choice is not None
    assert large.solution.cost is not None
    cost = evaluate(large.priced.problem, choice)
    assert cost is not None
    assert cost >= large.solution.cost
    before, after = small.assignment.strategies, large.priced.decode(choice).strategies
    assert sum(before[n].roles == after[n].roles for n in before) > len(before) // 2


def test_another_shape_of_mesh_is_left_alone(graph: Graph) -> None:
    recall = Recall(describe(plan(graph, 4, 2), bind={}, batch=None))
    assert recall.choice(plan(graph, 8).priced) is None
    assert recall.choice(plan(graph, 2, 4).priced) is None


def test_a_plan_of_another_model_is_left_alone(graph: Graph) -> None:
    other = import_bytes(mlp())
    assert Recall(describe(plan(other, 4), bind={}, batch=None)).choice(plan(graph, 4).priced) is None


def test_a_plain_choice_is_valid(graph: Graph) -> None:
    planned = plan(graph, 2, 2)
    choice = plain_choice(planned.priced, Control())
    assert choice is not None
    assert (evaluate(planned.priced.problem, choice) or 0) >= (planned.solution.cost or 0) > 0


def test_a_search_that_begins_with_the_optimum_returns_it(graph: Graph) -> None:
    planned = plan(graph, 2, 2)
    again = make_plan(graph, planned.request, recall=Recall(describe(planned, bind={}, batch=None)))
    assert again.solution.cost == planned.solution.cost
    assert again.bound_s == planned.bound_s


def search(capsys: pytest.CaptureFixture[str], model: Path, *extra: object) -> tuple[dict[str, Any], str]:
    assert main([str(a) for a in ("search", model, "--out", model.parent / "out", "--force", "--json", *extra)]) == 0
    out, err = capsys.readouterr()
    return json.loads(out), err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(transformer())
    return path


def test_the_command_begins_with_a_file_or_under_a_time_limit_with_the_nearest(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, _ = search(capsys, model, "--devices", 4)
    given, _ = search(capsys, model, "--devices", 8, "--warm-start", first["plan"])
    assert given["devices"] == 8
    _, err = search(capsys, model, "--devices", 8, "--batch", 8)
    assert "begins with" not in err, "without a limit in time the cache has no say in the plan"
    _, err = search(capsys, model, "--devices", 16, "--time-limit", 30)
    assert "begins with" in err


def test_the_command_names_what_cannot_be_begun_with(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = model.parent / "mlp.onnx"
    other.write_bytes(mlp())
    assert main(["search", str(other), "--devices", "2", "--out", str(model.parent / "o")]) == 0
    start = str(model.parent / "o" / "plan.json")
    assert main(["search", str(model), "--devices", "2", "--warm-start", start]) == 3
    assert "operators are in it" in capsys.readouterr().err
    assert main(["search", str(model), "--devices", "2", "--warm-start", str(model)]) == 3


def test_the_best_plans_of_several_meshes(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, _ = search(capsys, model, "--devices", 8)
    many, _ = search(capsys, model, "--devices", 8, "--top-k", 3)
    plans = many["plans"]
    assert [Path(p["plan"]).name for p in plans] == ["plan.json", "plan-2.json", "plan-3.json"]
    assert len({p["mesh"] for p in plans}) == 3
    assert [p["objective_s"] for p in plans] == sorted(p["objective_s"] for p in plans)
    assert many["objective_s"] == one["objective_s"]
    for p in plans:
        only, _ = search(capsys, model, "--devices", 8, "--mesh", p["mesh"])
        assert only["objective_s"] == pytest.approx(p["objective_s"], rel=1e-12)
        assert json.loads(Path(p["plan"]).read_text())["cost"]["gap"] >= 0
