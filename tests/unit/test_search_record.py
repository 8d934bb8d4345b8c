"""What a search leaves beside its plan: how it moved, and what it found by time and memory."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.library.plan import load_plan
from planner.planning import PlanDocument, plan_text, read_plan
from planner.report.front import unbeaten
from planner.report.html.data import page_data
from planner.report.view import view
from planner.requests.history import _MOST, History, points_of
from planner.requests.record_file import record_beside
from planner.verify.label import labelled

SIZES = {"layers": 4, "hidden": 512, "heads": 4, "vocab": 4096, "seq": 256, "attention": "fused", "batch": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "gpt.onnx"
    path.write_bytes(build("gpt", SIZES).SerializeToString())
    return path


@pytest.fixture(scope="module")
def found(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert searched(model, out, "--front", "--no-cache") == 0
    return out


def searched(model: Path, out: Path, *more: str) -> int:
    return main(["search", str(model), "--devices", "2", "--out", str(out), *more])


def record_in(folder: Path, name: str = "history.json") -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / name).read_text())
    return read


def test_moments_follow_each_other_and_end_with_the_plan(found: Path) -> None:
    check_moments(record_in(found), read_plan(found / "plan.json"))


def check_moments(record: dict[str, Any], plan: PlanDocument) -> None:
    assert record["schema"] == "planner.history/1"
    assert record["steps"][-1]["best_s"] == plan.cost.step_time_s
    assert record["steps"][0]["best_s"] >= plan.cost.step_time_s
    for moments in (record["steps"], record["objectives"]):
        for a, b in pairwise(moments):
            assert 0 <= a["seconds"] <= b["seconds"] <= record["seconds"]
            assert b["best_s"] <= a["best_s"]
        assert all(m["bound_s"] is None or m["bound_s"] <= m["best_s"] for m in moments)


def test_the_report_draws_what_the_record_says(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(found), "--json"]) == 0
    document, record = json.loads(capsys.readouterr().out), record_in(found)
    assert document["history"] == {k: record[k] for k in ("seconds", "steps", "objectives")}
    assert {p["kind"] for p in document["front"]} >= {"plan", "front"}
    assert [p["own"] for p in document["front"]].count(True) == 1
    sizes = [p["peak_memory_bytes"] for p in document["front"]]
    assert sizes == sorted(sizes)
    for p, q in pairwise([p for p in document["front"] if p["best"]]):
        assert q["step_time_s"] <= p["step_time_s"]
    report = load_plan(found).report()
    assert report.to_dict()["history"] == document["history"]


@pytest.mark.parametrize("options", [(), ("--memory-limit", "300MiB", "--batch", "64")])
def test_report_and_search_prove_the_same_bound(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """The second plan has micro-batches, for which the plan alone has a weaker bound."""
    assert searched(model, tmp_path, "--json", *options) == 0
    said = json.loads(capsys.readouterr().out)
    assert main(["report", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["proven"]["of"] == "search"
    assert document["proven"]["bound_s"] == pytest.approx(said["step_time_lower_bound_s"], rel=1e-9)
    assert document["proven"]["gap"] == pytest.approx(said["gap"], abs=1e-9)
    assert not any("`planner search` prints" in n["text"] for n in document["notes"])
    (tmp_path / "history.json").unlink()
    assert main(["report", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plan = read_plan(tmp_path / "plan.json")
    assert document["proven"] == {"of": "plan", "bound_s": plan.cost.step_time_lower_bound_s, "gap": plan.cost.gap}
    if options:
        assert plan.schedule.micro_batches > 1
        assert any("`planner search` prints" in n["text"] for n in document["notes"])
    assert main(["report", str(tmp_path)]) == 0
    assert f"plan        {said['in_words'].split(';')[0]}" in capsys.readouterr().out


def test_a_plan_alone_is_shown_without(found: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(found / "plan.json", tmp_path / "plan.json")
    assert main(["report", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["history"] is document["front"] is None
    data = page_data(view(read_plan(tmp_path / "plan.json")))
    assert data["report"]["history"] is None


def test_the_record_of_another_plan_is_not_taken(found: Path, tmp_path: Path) -> None:
    shutil.copy(found / "history.json", tmp_path / "history.json")
    plan = read_plan(found / "plan.json")
    other = plan.model_copy(update={"cost": plan.cost.model_copy(update={"step_time_s": 1.0})})
    assert record_beside(tmp_path / "plan.json", other) is None
    for same in (plan, labelled(plan, whole=True, gradients=True)):  # a proof makes no other plan of it
        assert record_beside(tmp_path / "plan.json", same) is not None
        assert record_beside(tmp_path / "plan-2.json", same) is not None


def test_of_several_counts_each_plan_has_its_own(model: Path, tmp_path: Path) -> None:
    assert main(["search", str(model), "--devices", "1,2", "--front", "--no-cache", "--out", str(tmp_path)]) == 0
    digests = [record_in(tmp_path, f"history-{n}.json")["plans"] for n in (1, 2)]
    assert digests[0] != digests[1]
    for n in (1, 2):
        path = tmp_path / f"plan-{n}.json"
        assert record_beside(path, read_plan(path)) is not None
        check_moments(record_in(tmp_path, f"history-{n}.json"), read_plan(path))


def test_with_reproducible_it_is_the_same_bytes_every_time(model: Path, tmp_path: Path) -> None:
    for k in (1, 2):
        assert searched(model, tmp_path / str(k), "--reproducible", "--front", "--no-cache") == 0
    first, second = ((tmp_path / str(k) / "history.json").read_bytes() for k in (1, 2))
    assert first == second
    assert record_in(tmp_path / "1")["seconds"] is None
    assert record_in(tmp_path / "1")["points"]


def test_an_answer_of_the_cache_brings_the_record_of_its_search(model: Path, tmp_path: Path) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    for k in (1, 2):
        assert searched(model, tmp_path / str(k), *cache) == 0
    assert record_in(tmp_path / "1") == record_in(tmp_path / "2")


def test_a_file_that_is_no_record_is_not_replaced(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "history.json").write_text("mine")
    assert searched(model, tmp_path, "--no-cache") == 0
    assert "history.json is there already and is no record of a search" in capsys.readouterr().err
    assert (tmp_path / "history.json").read_text() == "mine"
    path = tmp_path / "plan.json"
    assert record_beside(path, read_plan(path)) is None
    assert plan_text(read_plan(path)) == path.read_text()


def test_a_pareto_figure_takes_what_was_found_beside_the_plan(found: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "pareto", str(found), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["points"]) == len(record_in(found)["points"])
    assert {"searched", "front of the search"} <= {p["series"] for p in data["points"]}


def test_a_refused_best_is_forgotten_and_nothing_is_told_twice() -> None:
    history = History()
    for best, bound in ((3.0, None), (2.0, 1.0), (2.5, None), (2.0, 1.0)):
        history.step(best, bound)
    history.refused()
    history.step(2.5)
    history.end(2.4, 0.5)
    told = [(m["best_s"], m["bound_s"]) for m in history.document()["steps"]]
    assert told == [(3.0, None), (2.0, 1.0), (2.5, 1.0), (2.4, 0.5)]


def test_many_moments_are_thinned_with_both_ends() -> None:
    history = History()
    for k in range(5 * _MOST):
        history.objective(10.0 * _MOST - k)
    kept = history.document()["objectives"]
    assert len(kept) == _MOST
    assert (kept[0]["best_s"], kept[-1]["best_s"]) == (10.0 * _MOST, 5.0 * _MOST + 1)


def test_a_point_is_listed_once() -> None:
    plan = {"in_words": "DP 2", "step_time_s": 1.0, "peak_memory_bytes": 5}
    again = {"parallelism": "DP 2, ZeRO 1", "step_time_s": 1.0 + 1e-13, "peak_memory_bytes": 5}
    other = {"parallelism": "TP 2", "step_time_s": 2.0, "peak_memory_bytes": 3}
    points = points_of([plan | {"uniform": {"best": [again], "front": [again, other]}}])
    assert [(p["kind"], p["parallelism"]) for p in points] == [("plan", "DP 2"), ("front", "TP 2")]
    assert unbeaten([(1.0, 5), (2.0, 3), (2.0, 5)]) == [True, True, False]
