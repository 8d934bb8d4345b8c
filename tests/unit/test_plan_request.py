"""What was asked stands in plan.json, and asks the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.frontends import load_model
from planner.planning import read_plan
from planner.planning.constraints import Constraints, constraints_text, parse_constraints, read_constraints
from planner.requests.recorded import arguments_of, request_of

MLP = Path(__file__).parents[2] / "sample_graphs" / "mlp.onnx"
PINS = """schema: planner.constraints/1
mesh: [8, 4x2]
operators:
  - {match: "*matmul*", strategy: {b0: x}}
  - {match: ["*add*"], type: Add, strategy: replicated}
  - {reads: "*weight", shard: [[1, 1], null], shard_out: [[1, 1]], roles: {x: "split:m", y: defer}}
tensors:
  - {match: "t*", layout: "[x, _]+y(max)", produced: [8, 1]}
parameters:
  - {match: "*", stored: replicated, compute: [_, x.y]}
rest: {data_parallel: [x]}
batch: {x: 0}
"""


def searched(tmp_path: Path, *extra: str, name: str = "a") -> Path:
    out = tmp_path / name
    arguments = ["search", str(MLP), "--devices", "4", "--no-cache", "--out", str(out), *extra]
    assert main(arguments) == 0
    return out / "plan.json"


def values(constraints: Constraints) -> tuple[Any, ...]:
    """All but where it stands."""
    operators = [(p.strategy, p.match, p.types, p.reads) for p in constraints.operators]
    tensors = [(p.match, p.layout, p.produced) for p in constraints.tensors]
    parameters = [(p.match, p.stored, p.compute) for p in constraints.parameters]
    rest = constraints.rest.kind, constraints.rest.axes, bool(constraints.rest.where)
    return constraints.meshes, operators, tensors, parameters, rest, constraints.batch


def test_constraints_written_as_text_are_read_as_the_same_pins() -> None:
    given = parse_constraints(PINS, "pins.yaml")
    assert values(parse_constraints(constraints_text(given), "again")) == values(given)


def test_a_plan_written_as_constraints_is_read_as_the_same_pins(tmp_path: Path) -> None:
    given = read_constraints(searched(tmp_path, "--mesh", "2x2"))
    assert values(parse_constraints(constraints_text(given), "again")) == values(given)


def test_the_request_asks_for_the_same_plan_again(tmp_path: Path) -> None:
    pins = tmp_path / "pins.yaml"
    pins.write_text("schema: planner.constraints/1\nrest: data_parallel\n")
    options = ("--optimizer", "sgd", "--memory-limit", "40GiB", "--constraints", str(pins), "--pin", "mesh=2x2")
    first = searched(tmp_path, *options, "--batch", "32")
    request = read_plan(first).search.request
    assert request is not None
    assert request.constraints is not None
    assert request.constraints.text == pins.read_text()
    assert request.reproducible
    again = tmp_path / "again"
    assert main(["search", *arguments_of(request_of(request, MLP)), "--no-cache", "--out", str(again)]) == 0
    assert (again / "plan.json").read_bytes() == first.read_bytes()


def test_a_plan_taken_as_constraints_is_kept_as_its_pins(tmp_path: Path) -> None:
    first = searched(tmp_path)
    second = read_plan(searched(tmp_path, "--constraints", str(first), name="b"))
    request = second.search.request
    assert request is not None
    assert request.constraints is not None
    assert '"planner.constraints/1"' in request.constraints.text
    assert values(parse_constraints(request.constraints.text, "kept")) == values(read_constraints(first))


def test_a_limit_that_cut_nothing_short_is_not_part_of_the_request(tmp_path: Path) -> None:
    assert searched(tmp_path, "--time-limit", "600").read_bytes() == searched(tmp_path, name="b").read_bytes()


def test_a_profile_of_the_users_own_is_kept_with_its_text(tmp_path: Path) -> None:
    profile = tmp_path / "mine.toml"
    profile.write_text((MLP.parents[1] / "cost_models" / "profiles" / "h100.toml").read_text())
    request = read_plan(searched(tmp_path, "--hardware", str(profile))).search.request
    assert request is not None
    assert request.profile is not None
    assert (request.profile.name, request.profile.text) == (str(profile), profile.read_text())


def test_plans_without_a_request_are_still_read(tmp_path: Path) -> None:
    path = searched(tmp_path)
    document = json.loads(path.read_text())
    del document["search"]["request"]
    path.write_text(json.dumps(document))
    assert read_plan(path).search.request is None


@pytest.mark.parametrize("count", [2, 4])
def test_of_several_counts_of_devices_each_plan_says_its_own(tmp_path: Path, count: int) -> None:
    out = tmp_path / "several"
    assert main(["search", str(MLP), "--devices", "2,4", "--no-cache", "--out", str(out)]) == 0
    request = read_plan(out / f"plan-{count}.json").search.request
    assert request is not None
    assert request.devices == count


def test_the_model_lies_beside_the_plan_with_its_digest(tmp_path: Path) -> None:
    plan = searched(tmp_path)
    kept = load_model(plan.parent / "model.onnx")
    assert kept.digest == read_plan(plan).model.digest


def test_a_kept_answer_brings_the_model_too(tmp_path: Path) -> None:
    folder, arguments = tmp_path / "a", ["search", str(MLP), "--devices", "4", "--cache", str(tmp_path / "cache")]
    assert main([*arguments, "--out", str(folder)]) == 0
    first = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").unlink()
    assert main([*arguments, "--out", str(folder)]) == 0
    assert (folder / "model.onnx").read_bytes() == first


def test_a_model_of_somebodys_own_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"somebody's")
    searched(tmp_path)
    assert (folder / "model.onnx").read_bytes() == b"somebody's"
    assert "is not kept" in capsys.readouterr().err


def test_a_kept_model_gives_way_to_that_of_the_next_plan(tmp_path: Path) -> None:
    plan = searched(tmp_path)
    first = (plan.parent / "model.onnx").read_bytes()
    other = MLP.parent / "resnet18_tiny.onnx"
    assert main(["search", str(other), "--devices", "2", "--no-cache", "--force", "--out", str(plan.parent)]) == 0
    assert (plan.parent / "model.onnx").read_bytes() != first


def test_a_model_searched_where_it_was_kept_stays_as_it_is(tmp_path: Path) -> None:
    plan = searched(tmp_path)
    model = plan.parent / "model.onnx"
    before, inode = model.read_bytes(), model.stat().st_ino
    assert main(["search", str(model), "--devices", "4", "--no-cache", "--out", str(plan.parent)]) == 0
    assert (model.read_bytes(), model.stat().st_ino) == (before, inode)


def test_a_plan_is_verified_with_the_model_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = searched(tmp_path)
    assert main(["verify", str(plan)]) == 0
    assert read_plan(plan).verification == "full"
    (plan.parent / "model.onnx").unlink()
    assert main(["verify", str(plan)]) == 3
    assert "give the model that was planned with the argument MODEL" in capsys.readouterr().err
