"""`planner diff`: what changed, what equal changes have in common, and that their costs add up."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.planning import PlanDocument, plan_text
from planner.report.diff import Diff, details, diff, document, text
from planner.report.diff.groups import pattern
from planner.report.diff.ledger import PARTS
from tests.unit.diff_plans import HOSTILE, PAIRS, edited, hostile, searched


@pytest.fixture(scope="module")
def plan() -> Callable[[str], PlanDocument]:
    return searched


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("plans")

    def written(name: str) -> Path:
        path = folder / f"{name}.json"
        path.write_text(plan_text(searched(name)), encoding="utf-8")
        return path

    return written


def everything(found: Diff, most: int = 10) -> str:
    return f"{text(found)}\n{details(found, most)}"


def untold(plan: PlanDocument) -> PlanDocument:
    """As versions before told nothing of runs."""

    def change(data: dict[str, Any]) -> None:
        for key in ("price_resolution_s", "memory_bytes"):
            data["cost"].pop(key, None)
        data["model"].pop("repeated", None)
        for op in data["operators"].values():
            op.pop("runs", None)
        for p in data["parameters"].values():
            p.pop("optimizer_s", None)

    return edited(plan, change)


def entries(told: dict[str, Any]) -> list[dict[str, Any]]:
    o = told["objective"]
    return [*o["groups"], *o["same"], o["only_a"], o["only_b"], o["loose"], o["remainder"]]


def units(entry: dict[str, Any], part: str) -> int:
    return entry["parts"].get(part, {"delta_units": 0})["delta_units"]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_costs_of_changes_add_up_to_the_difference_of_the_objectives(
    plan: Callable[[str], PlanDocument], a: str, b: str
) -> None:
    first, second = plan(a), plan(b)
    for one, other in ((first, second), (second, first), (untold(first), second), (untold(first), untold(second))):
        told = document(diff(one, other))
        assert sum(e["delta_units"] for e in entries(told)) == told["objective"]["delta_units"]
        for part in PARTS:
            assert sum(units(e, part) for e in entries(told)) == told["parts"][part]["delta_units"]
        change = other.cost.objective_s - one.cost.objective_s
        assert told["objective"]["delta_units"] * told["unit_s"] == pytest.approx(change, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_plans_that_tell_their_runs_leave_nothing_unexplained(
    plan: Callable[[str], PlanDocument], a: str, b: str
) -> None:
    found = diff(plan(a), plan(b))
    assert found.exact
    assert found.remainder_units == 0
    assert not found.remainder
    assert not any(found.loose[0].values())


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_the_other_way_round_everything_changes_sign(plan: Callable[[str], PlanDocument], a: str, b: str) -> None:
    there, back = (document(diff(x, y)) for x, y in ((plan(a), plan(b)), (plan(b), plan(a))))
    assert there["objective"]["delta_units"] == -back["objective"]["delta_units"]
    assert {k: -v["delta_units"] for k, v in there["parts"].items()} == {
        k: v["delta_units"] for k, v in back["parts"].items()
    }

    def changed(told: dict[str, Any], way: int) -> dict[tuple[str, str], int]:
        pairs = [(p, g["delta_units"]) for g in told["objective"]["groups"] for p in g["operators"]]
        return {(p[0], p[1])[::way]: way * n for p, n in pairs}  # type: ignore[misc]

    assert changed(there, 1).keys() == changed(back, -1).keys()


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_every_operator_stands_in_one_place(plan: Callable[[str], PlanDocument], a: str, b: str) -> None:
    first, second = plan(a), plan(b)
    found = diff(first, second)
    seen = Counter(p for g in (*found.groups, *found.same) for p in g.operators)
    assert set(seen.values()) <= {1}
    assert set(seen) <= set(found.matching.pairs)
    assert sorted([x for x, _ in found.matching.pairs] + [*found.matching.only_a]) == sorted(first.operators)
    assert sorted([y for _, y in found.matching.pairs] + [*found.matching.only_b]) == sorted(second.operators)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_figures_are_the_very_ones_of_the_plans(plan: Callable[[str], PlanDocument], a: str, b: str) -> None:
    first, second = plan(a), plan(b)
    found = diff(first, second)
    told = document(found)
    shown = details(found)
    for key, cost in (("a", first.cost), ("b", second.cost)):
        own = {k: getattr(cost, k) for k in told["totals"]}
        assert {k: v[key] for k, v in told["totals"].items()} == own
        assert {k: v[f"{key}_s"] for k, v in told["parts"].items()} == cost.parts_s
        assert {k: v[key] for k, v in told["memory"].items() if v[key] is not None} == cost.memory_bytes
        for k in ("objective_s", "objective_lower_bound_s", "step_time_s", "peak_memory_bytes"):
            assert repr(own[k]) in shown


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_terminal_shows_one_screen_with_the_largest_effects_first(
    plan: Callable[[str], PlanDocument], a: str, b: str
) -> None:
    found = diff(plan(a), plan(b))
    lines = text(found).splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 130
    assert all(abs(x.delta.units) >= abs(y.delta.units) for x, y in pairwise(found.groups))


def test_identical_plans_say_so_and_exit_with_0(
    file: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(file("searched"))
    capsys.readouterr()
    assert main(["diff", one, one]) == 0
    assert "identical" in capsys.readouterr().out
    assert main(["diff", one, one, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["identical"] is True
    assert told["objective"]["delta_units"] == 0
    assert entries(told)[:-4] == []
    proved = tmp_path / "proved.json"
    proved.write_text(plan_text(edited(searched("searched"), lambda d: d.update(verification="full"))))
    assert main(["diff", one, str(proved)]) == 0
    out = capsys.readouterr().out
    assert "identical" in out
    assert "verification: none -> full" in out


def test_a_difference_exits_with_1(file: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["diff", str(file("data")), str(file("searched")), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["identical"] is False
    assert main(["diff", str(file("data")), str(file("searched"))]) == 1
    assert "1 of --pin 'rest=data_parallel' -> none" in capsys.readouterr().out


def test_equal_changes_of_repeated_blocks_are_one_group(plan: Callable[[str], PlanDocument]) -> None:
    a, b = plan("data"), plan("tensor")
    blocks = a.model.repeated[0]
    found = diff(a, b)
    place = {n: i for block in blocks for i, n in enumerate(block)}
    group_of = {here: k for k, g in enumerate(found.groups) for here, _ in g.operators}
    whole = [g for g in found.groups if len(g.operators) == len(blocks)]
    assert whole
    for g in found.groups:
        assert len({place.get(here) for here, _ in g.operators}) == 1
        assert len({a.operators[here].type for here, _ in g.operators}) == 1
    for i in range(len(blocks[0])):
        told = {(str(a.operators[x[i]].strategy), str(b.operators[x[i]].strategy)) for x in blocks}
        assert len(told) <= len({group_of.get(x[i]) for x in blocks})


def test_other_hardware_alone_changes_prices_and_no_layouts(plan: Callable[[str], PlanDocument]) -> None:
    """The same pins on the same mesh."""
    a = plan("data")

    def dearer(data: dict[str, Any]) -> None:
        data["cluster"].update(hardware="another", profile_digest="0" * 64)
        for op in data["operators"].values():
            for r in op["runs"]:
                r["seconds"] *= 2
                r["inside_s"] *= 2
        for key in ("compute_forward", "compute_backward", "inside_operators"):
            data["cost"]["objective_s"] += data["cost"]["parts_s"][key]
            data["cost"]["parts_s"][key] *= 2

    b = edited(a, dearer)
    found = diff(a, b)
    assert not found.groups
    assert found.same
    assert found.remainder_units == 0
    assert "same layout, other price" in text(found)
    assert "prices are those of other hardware" in text(found)


def test_an_edited_operator_is_the_only_change(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("tensor")
    name = next(n for n, o in a.operators.items() if o.type == "MatMul")

    def change(data: dict[str, Any]) -> None:
        op = data["operators"][name]
        op["strategy"] = dict.fromkeys(op["strategy"], "replicate")

    (group,) = diff(a, edited(a, change)).groups
    assert group.operators == ((name, name),)
    assert [c.trait for c in group.changes] == ["strategy"]
    assert [w.text for w in group.changes[0].after] == ["_"]


def test_a_redistribution_that_is_gone_is_told_with_what_it_cost(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("tensor")
    index = next(i for i, r in enumerate(a.redistributions) if r.seconds > 0)
    b = edited(a, lambda d: d["redistributions"].pop(index))
    (group,) = diff(a, b).groups
    assert [c.trait for c in group.changes] == ["redistributions"]
    found = diff(a, b)
    assert found.seconds(group.delta.units) == pytest.approx(-a.redistributions[index].seconds)
    assert found.remainder_units == -group.delta.units  # the file's total was not edited


def test_a_parameter_stored_otherwise_is_told_with_the_bytes_of_its_state(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("data")
    name = next(n for n, p in a.parameters.items() if len(p.shape) == 2 and not any(p.stored.dims))
    axis = a.mesh.names[0]

    def change(data: dict[str, Any]) -> None:
        for key in ("stored", "gradient", "optimizer"):
            data["parameters"][name][key]["dims"] = [[axis], []]

    (group,) = diff(a, edited(a, change)).groups
    assert "parameters" in [c.trait for c in group.changes]
    assert name in group.parameters
    whole = 14 * math.prod(a.parameters[name].shape)  # gradient 2, master 4, Adam's moments 8
    assert group.delta.parameter_bytes == whole // a.mesh.sizes[axis] - whole


def test_any_edit_is_named(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("searched")

    def timeline(data: dict[str, Any]) -> None:
        next(iter(data["operators"].values()))["runs"][0]["begin_s"] += 1.0

    edits: dict[str, Callable[[dict[str, Any]], object]] = {
        "runs.0.begin_s": timeline,
        "dtype": lambda d: next(iter(d["tensors"].values())).update(dtype="float16"),
        "memory_limit_bytes": lambda d: d["cluster"].update(memory_limit_bytes=1),
        "schedule.target": lambda d: d["schedule"].update(target="torch"),
        "no such pin": lambda d: d["pins"].append({"object": "rest", "pin": "no such pin", "source": "here"}),
        "profile_digest": lambda d: d["cluster"].update(profile_digest="0"),
        "recompute": lambda d: d["schedule"].update(recompute=[[next(iter(d["operators"]))]]),
    }
    for word, edit in edits.items():
        found = diff(a, edited(a, edit))
        assert not found.identical
        assert word in everything(found)


def test_operators_of_another_export_correspond_by_module_type_and_position(
    plan: Callable[[str], PlanDocument],
) -> None:
    a, b = plan("data"), plan("tensor")
    names = {n: f"node_{i}" for i, n in enumerate(b.tensors)} | {n: f"op_{i}" for i, n in enumerate(b.operators)}

    def renamed(x: Any, keys: bool = True) -> Any:
        if isinstance(x, dict):
            return {(names.get(k, k) if keys else k): renamed(v) for k, v in x.items()}
        if isinstance(x, list):
            return [renamed(v) for v in x]
        return names.get(x, x) if isinstance(x, str) else x

    def change(data: dict[str, Any]) -> None:
        for key in ("operators", "tensors", "parameters", "redistributions"):
            data[key] = renamed(data[key])
        data["model"]["repeated"] = renamed(data["model"]["repeated"])
        data["model"]["digest"] = "0" * 64

    by_name, by_position = diff(a, b), diff(a, edited(b, change))
    assert by_position.matching.by_name == 0
    assert not by_position.matching.only_a
    assert [(g.type, len(g.operators), g.delta) for g in by_position.groups] == [
        (g.type, len(g.operators), g.delta) for g in by_name.groups
    ]
    assert f"{len(a.operators)} by module, type and position" in text(by_position)


def test_plans_of_different_models_are_called_that(plan: Callable[[str], PlanDocument]) -> None:
    found = diff(plan("searched"), plan("experts"))
    assert found.matching.other_models
    assert "plans of different models" in text(found)
    assert not diff(plan("searched"), plan("other batch")).matching.other_models


def test_micro_batches_are_not_taken_for_whole_steps(plan: Callable[[str], PlanDocument]) -> None:
    found = diff(plan("pipeline"), plan("other batch"))
    assert "of one micro-batch through all stages" in details(found)
    assert "stages: 2 -> 1" in text(found)


def test_times_in_other_units_are_compared_exactly(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("searched")

    def coarse(data: dict[str, Any]) -> None:
        """Every figure three thousand times as large, in a unit 1500 times as large."""
        size = data["cost"]["price_resolution_s"]

        def scaled(x: float) -> float:
            return round(x / size) * 2 * (1500 * size)

        data["cost"]["price_resolution_s"] = 1500 * size
        data["cost"]["objective_s"] = scaled(data["cost"]["objective_s"])
        data["cost"]["parts_s"] = {k: scaled(v) for k, v in data["cost"]["parts_s"].items()}
        for op in data["operators"].values():
            for r in op["runs"]:
                r |= {k: scaled(r[k]) for k in ("seconds", "inside_s")}
        for r in data["redistributions"]:
            r["seconds"] = scaled(r["seconds"])
        for p in data["parameters"].values():
            p["optimizer_s"] = scaled(p["optimizer_s"])

    found = diff(a, edited(a, coarse))
    assert found.exact
    assert found.remainder_units == 0
    assert not found.remainder
    assert found.objective[1] == 3000 * found.objective[0]


def test_plans_that_tell_no_runs_say_what_is_missing(plan: Callable[[str], PlanDocument]) -> None:
    found = diff(untold(plan("data")), untold(plan("searched")))
    assert not found.exact
    assert found.remainder_units != 0
    assert "does not say what its operators' runs cost" in details(found)
    assert found.groups


def test_a_plan_that_tells_no_runs_beside_itself_with_them_changes_nothing(plan: Callable[[str], PlanDocument]) -> None:
    found = diff(untold(plan("data")), plan("data"))
    assert not found.identical
    assert not found.groups
    assert not found.same
    assert found.remainder_units == found.objective_units == 0
    assert not found.remainder
    assert "plan A does not say" in found.notes[0]


def test_a_time_that_is_no_number_is_refused(
    plan: Callable[[str], PlanDocument], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    for wrong in ("NaN", "Infinity"):
        data = json.loads(plan_text(plan("searched")))
        data["cost"]["objective_s"] = float(wrong)
        file.write_text(json.dumps(data))
        assert main(["diff", str(file), str(file)]) == 3
        assert "at cost.objective_s" in capsys.readouterr().err


def test_no_name_of_a_model_moves_the_terminal(plan: Callable[[str], PlanDocument]) -> None:
    a = plan("data")

    def odd(data: dict[str, Any]) -> None:
        hostile(data)
        for op in data["operators"].values():
            op["strategy"] = dict.fromkeys(op["strategy"], "split:\x1b[31m")
            for c in op["inner"]:
                c["kind"] = "\x1b"

    for other in (edited(a, odd), edited(plan("searched"), odd)):
        for found in (diff(a, other), diff(other, a), diff(other, other)):
            shown = "\n".join((text(found, (HOSTILE[0], HOSTILE[4])), details(found, 1000)))
            assert all(c.isprintable() for line in shown.split("\n") for c in line)
            assert max(map(len, shown.split("\n"))) < 1000
            json.dumps(document(found))


def test_names_that_differ_in_numbers_are_told_as_one() -> None:
    assert pattern(["h.0.fc", "h.1.fc", "h.2.fc", "h.5.fc"]) == "h.{0..2,5}.fc"
    assert pattern(["fc"]) == "fc"
    assert pattern(["one", "two"]) == "one and 1 more"


def test_a_missing_plan_is_an_error_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 3
    assert "cannot be read" in capsys.readouterr().err
