"""`planner plot`: the data are the very figures of plans and answers, and figures are made of them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.errors import InputError
from planner.planning import plan_text, read_plan
from planner.report.plots import Point, breakdown, pareto, scaling
from planner.report.plots.draw import drawn
from tests.unit.diff_plans import edited, searched

MODEL = str(Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Plans for 2 and 4 devices, and an evaluation."""
    out = tmp_path_factory.mktemp("plots")
    assert main(["search", MODEL, "--devices", "2,4", "--no-cache", "--out", str(out / "scale")]) == 0
    assert main(["evaluate", MODEL, "--devices", "4", "--strategy", "ddp", "--out", str(out / "ddp")]) == 0
    (out / "pipeline.json").write_text(plan_text(searched("pipeline")))
    return out


def data_of(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plot", *map(str, words), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_scaling_is_that_of_the_plans(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = data_of(capsys, "scaling", folder / "scale", folder / "ddp")
    plans = [read_plan(folder / "scale" / f"plan-{n}.json") for n in (2, 4)]
    found, known = d["series"]
    assert (found["name"], known["name"]) == ("searched", "ddp")
    assert [p["step_time_s"] for p in found["points"]] == [p.cost.step_time_s for p in plans]
    assert [p["devices"] for p in found["points"]] == [2, 4]
    evaluation = json.loads((folder / "ddp" / "evaluation.json").read_text())
    assert known["points"][0]["mfu"] == evaluation["mfu"]
    assert found["points"][1]["mfu"] * plans[1].cost.step_time_s == pytest.approx(
        evaluation["mfu"] * evaluation["step_time_s"]
    )
    assert d["ideal"][1]["step_time_s"] == plans[0].cost.step_time_s / 2


def test_a_breakdown_adds_up_to_the_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = data_of(capsys, "breakdown", folder / "scale", folder / "ddp", f"pipe={folder / 'pipeline.json'}")
    assert [p["name"] for p in d["plans"]][2:] == ["ddp", "pipe"]
    for p in d["plans"]:
        assert sum(p["causes_s"].values()) == pytest.approx(p["step_time_s"], abs=2e-12)
        assert set(p["causes_s"]) == set(d["causes"])


def test_what_another_one_beats_in_both_is_not_on_the_front() -> None:
    def point(name: str, seconds: float, size: int, devices: int = 4) -> Point:
        return Point("s", name, devices, 8, seconds, size)

    rows = pareto([point("a", 1, 30), point("b", 2, 20), point("c", 3, 25), point("d", 9, 10, devices=2)])["points"]
    assert {p["name"]: p["best"] for p in rows} == {"a": True, "b": True, "c": False, "d": True}


def test_the_front_of_a_search_is_drawn_beside_its_plan(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = {
        "plan": "plan.json", "devices": 4, "batch": 8, "in_words": "DP 4", "step_time_s": 1.0,
        "peak_memory_bytes": 2**30,
        "uniform": {"front": [{"parallelism": "TP 4", "step_time_s": 2.0, "peak_memory_bytes": 2**29}]},
    }  # fmt: skip
    (tmp_path / "answer.json").write_text(json.dumps([answer]))
    rows = data_of(capsys, "pareto", tmp_path / "answer.json", folder / "ddp")["points"]
    assert {(p["name"], p["series"]) for p in rows} >= {("TP 4", "front of the search"), ("DP 4", "searched")}


def test_a_timeline_has_the_passes_of_every_stage(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    d = data_of(capsys, "timeline", folder / "pipeline.json")
    plan = searched("pipeline")
    assert [r["name"] for r in d["rows"]] == ["stage 0", "stage 1"]
    passes = [b for r in d["rows"] for b in r["bars"] if b["phase"] == "forward"]
    assert len(passes) == 2 * plan.schedule.micro_batches
    assert max(b["end_s"] for r in d["rows"] for b in r["bars"]) <= plan.cost.step_time_s
    d = data_of(capsys, "timeline", folder / "scale" / "plan-4.json")
    one = read_plan(folder / "scale" / "plan-4.json")
    computing = sum(b["end_s"] - b["begin_s"] for b in d["rows"][0]["bars"])
    assert computing <= one.cost.step_time_s
    assert [r["name"] for r in d["rows"]] == ["computing", "activations", "parameters"]


def test_figures_are_made_and_the_same_twice(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    asked = {
        "svg": ("scaling", folder / "scale", folder / "ddp"),
        "png": ("breakdown", folder / "scale", folder / "ddp"),
        "pdf": ("timeline", folder / "pipeline.json"),
    }
    for kind, begin in begins.items():
        out = folder / f"figure.{kind}"
        assert main(["plot", *map(str, asked[kind]), "--out", str(out)]) == 0
        assert out.read_bytes().startswith(begin)
    data = data_of(capsys, "pareto", folder / "scale", folder / "ddp")
    first, again = (drawn(data, Path("figure.svg"), "slide") for _ in range(2))
    assert first == again
    assert b"memory per device (GiB)" in first


def test_a_figure_without_matplotlib_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", "timeline", str(folder / "pipeline.json"), "--out", str(folder / "none.svg")]) == 3
    assert "pip install '.[plot]' in the repository" in capsys.readouterr().err
    assert main(["plot", "timeline", str(folder / "pipeline.json"), "--json"]) == 0


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("scaling", "PLAN"), 2, "missing --out"),
        (("scaling", "PLAN", "--out", "figure.gif"), 2, "ends with .svg, .png, .pdf"),
        (("scaling", "PLAN", "--json"), 3, "at least 2 plans, found 1"),
        (("scaling", "PLAN", "PLAN", "--json"), 3, "two plans of as many devices"),
        (("timeline", "PLAN", "PLAN", "--json"), 2, "one plan"),
        (("pareto", "EMPTY", "PLAN", "--json"), 3, "is missing or wrong"),
        (("pareto", "LIST", "PLAN", "--json"), 3, "found neither"),
        (("scaling", "NONE", "PLAN", "--json"), 3, "is missing or wrong"),
        (("pareto", "absent.json", "PLAN", "--json"), 3, "cannot be read"),
        (("pareto", "FOLDER", "PLAN", "--json"), 3, "no plan.json"),
    ],
)
def test_refusals_name_what_is_wrong(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, said: str
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "list.json").write_text("[1]")
    answer = {"devices": 0, "batch": 16, "step_time_s": float("nan"), "peak_memory_bytes": 1}
    (tmp_path / "none.json").write_text(json.dumps(answer))
    files = {
        "PLAN": folder / "pipeline.json",
        "EMPTY": tmp_path / "empty.json",
        "LIST": tmp_path / "list.json",
        "NONE": tmp_path / "none.json",
        "FOLDER": tmp_path,
    }
    assert main(["plot", *(str(files.get(w, w)) for w in words)]) == status
    assert said in capsys.readouterr().err


def test_plans_of_other_batches_are_no_scaling() -> None:
    plans = [Point("s", "a", 2, 8, 1.0, 1), Point("s", "b", 4, 16, 1.0, 1)]
    with pytest.raises(Exception, match="expected plans of one batch, found 16, 8"):
        scaling(plans)


def test_plans_of_other_models_and_modes_are_no_scaling_and_a_series_is_of_one_hardware() -> None:
    first = Point("s", "a", 2, 8, 1.0, 1, model="gpt", mode="training", hardware="h100")
    second = replace(first, devices=4)
    for changed, said in (
        ({"model": "mlp"}, "plans of one model, found gpt, mlp"),
        ({"mode": "inference"}, "plans of one mode, found inference, training"),
        ({"hardware": "v100"}, "plans of one kind of hardware in series 's', found h100, v100"),
    ):
        with pytest.raises(InputError, match=said):
            scaling([first, replace(second, **changed)])
    assert len(scaling([first, replace(second, hardware="v100", series="t")])["series"]) == 2
    unknown = replace(second, model=None, mode=None, hardware=None)
    assert "model" not in scaling([first, unknown])["series"][0]["points"][0]


def test_plans_whose_steps_are_other_work_have_no_common_front() -> None:
    first = Point("s", "a", 2, 8, 1.0, 1, model="gpt", mode="training")
    for changed, said in (
        ({"model": "mlp"}, "plot pareto: expected plans of one model, found gpt, mlp"),
        ({"mode": "inference"}, "plot pareto: expected plans of one mode, found inference, training"),
        ({"batch": 16}, "plot pareto: expected plans of one batch, found 16, 8"),
    ):
        with pytest.raises(InputError, match=said):
            pareto([first, replace(first, **changed)])
    assert len(pareto([first, replace(first, model=None, mode=None, batch=None)])["points"]) == 2


def test_bars_of_several_models_are_named_with_them() -> None:
    points = [Point("s", "ddp", 2, 8, 1.0, 1, model=m, causes={"computing": 10**12}) for m in ("gpt", "mlp")]
    assert [p["name"] for p in breakdown(points)["plans"]] == ["gpt: ddp", "mlp: ddp"]
    assert [p["name"] for p in breakdown(points[:1] * 2)["plans"]] == ["ddp", "ddp"]


def test_names_are_drawn_as_they_are() -> None:
    """No formula is read in them, and a legend leaves none out."""
    points = [Point("a$_$b", "a$_$b", 2, 8, 1.0, 1), Point("_hidden", "x$", 4, 8, 1.0, 1)]
    for data in (scaling(points), pareto(points)):
        shown = drawn(data, Path("figure.svg"))
        assert b">a$_$b<" in shown or b">a$_$b, 2 devices<" in shown
        assert "\u200b_hidden".encode() in shown


def test_a_plan_that_tells_no_runs_has_no_timeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def silent(data: dict[str, Any]) -> None:
        for op in data["operators"].values():
            op["runs"] = []

    (tmp_path / "plan.json").write_text(plan_text(edited(searched("data"), silent)))
    assert main(["plot", "timeline", str(tmp_path), "--json"]) == 3
    assert "does not say when" in capsys.readouterr().err
