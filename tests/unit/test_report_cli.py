"""`planner report`."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.cost_models import load_profile
from planner.report import report_html, trace_document
from planner.requests.headline import words
from tests.unit.report_plans import hostile, old, plan_of, text_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(text_of("megatron"), encoding="utf-8")
    return path


def test_the_terminal_tells_the_totals_to_the_last_digit(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of("megatron")
    capsys.readouterr()
    assert main(["report", str(file)]) == 0
    told = capsys.readouterr().out
    for figure in (plan.cost.step_time_s, plan.cost.objective_s, plan.cost.objective_lower_bound_s):
        assert f"[{figure!r} s]" in told
    assert f"[{plan.cost.peak_memory_bytes} bytes]" in told
    assert "x=batch y=columns" in told


def test_json_repeats_the_cost_of_the_plan(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cost"] == json.loads(text_of("megatron"))["cost"]
    assert told["schema"] == "planner.report/1"


def test_page_and_trace_are_written_whole(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    assert main(["report", str(file), "--out", str(page), "--trace", str(trace)]) == 0
    assert page.read_text(encoding="utf-8") == report_html(plan_of("megatron"), None, words(plan_of("megatron")))
    assert json.loads(trace.read_text()) == json.loads(json.dumps(trace_document(plan_of("megatron"))))
    assert str(page) in capsys.readouterr().out


def test_the_ranks_of_a_tensor_are_listed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["report", str(file), "--tensor", "transformer.h.0.mlp.c_fc.weight"]) == 0
    told = capsys.readouterr().out
    assert "computed with" in told
    assert "ranks 0 2" in told
    assert main(["report", str(file), "--tensor", "input_ids"]) == 0
    assert "input_ids: " in capsys.readouterr().out
    assert main(["report", str(file), "--tensor", "transformer.h.0.mlp.c_fc.wait"]) == 3
    assert "near to it: transformer.h.0.mlp.c_fc.weight" in capsys.readouterr().err


def test_what_is_no_plan_and_what_cannot_be_written_are_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert main(["report", str(other)]) == 3
    assert main(["report", str(file), "--out", str(file / "report.html")]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_a_page_is_not_written_under_the_name_of_another_format(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, advice in (("r.pdf", "planner plot"), ("r.PNG", "planner plot"), ("r.json", "--json"), ("r.md", "text")):
        assert main(["report", str(file), "--out", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert "FILE.html" in said
        assert advice in said
        assert not (tmp_path / name).exists()
    assert main(["report", str(file), "--out", str(tmp_path / "page")]) == 0


def test_names_do_not_move_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(hostile(plan_of("megatron")).model_dump(by_alias=True)))
    capsys.readouterr()
    assert main(["report", str(path)]) == 0
    told = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in told)
    assert max(map(len, told.splitlines())) < 240


@pytest.mark.parametrize("kind", ["megatron", "data", "recomputed", "experts", "images"])
def test_the_trace_ends_with_the_simulated_step_and_streams_do_not_overlap(kind: str) -> None:
    plan = plan_of(kind)
    events = [e for e in trace_document(plan)["traceEvents"] if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(plan.cost.step_time_s * 1e6, abs=1e-3)
    total = sum(e["args"].get("seconds", 0.0) for e in events)  # what passes outside the model is no part of it
    assert total == pytest.approx(plan.cost.objective_s, rel=1e-9)


@pytest.mark.parametrize("whole", [int, round], ids=["older readers cut off", "readers round"])
@pytest.mark.parametrize("kind", ["megatron", "recomputed", "pipeline", "images"])
def test_in_whole_nanoseconds_no_event_of_a_thread_overlaps_the_next(kind: str, whole: Callable[[float], int]) -> None:
    """Perfetto reads times so, and drops what overlaps."""
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    events = trace_document(plan_of(kind))["traceEvents"]
    for e in (e for e in events if e["ph"] == "X"):
        rows.setdefault((e["pid"], e["tid"]), []).append((whole(e["ts"] * 1000.0), whole(e["dur"] * 1000.0)))
    assert all(a + d <= b for row in rows.values() for (a, d), (b, _) in pairwise(sorted(row)))
    assert {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"} >= rows.keys()


def test_the_trace_of_a_pipeline_has_every_micro_batch_on_every_stage() -> None:
    plan = plan_of("pipeline")
    events = [e for e in trace_document(plan)["traceEvents"] if e["ph"] == "X" and e["pid"] >= 100]
    for stage in range(len(plan.stages)):
        for kind in ("forward", "backward"):
            parts = [e["args"]["micro_batch"] for e in events if e["pid"] == 100 + stage and e["cat"] == kind]
            assert sorted(parts) == list(range(plan.schedule.micro_batches))
    host = load_profile(plan.cluster.hardware).host
    step = plan.cost.step_time_s - host.step_overhead_s  # what passes outside the model has no event
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(step * 1e6, abs=1e-3)


def test_a_plan_without_times_has_a_trace_without_a_step() -> None:
    assert trace_document(old(plan_of("data")))["traceEvents"] == []
