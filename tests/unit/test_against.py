"""`planner search --against`: what was found beside known configurations and plans, priced for the same request."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.planning import read_plan

MODEL = str(Path(__file__).parents[2] / "sample_graphs" / "gpt_tiny.onnx")
ASKED = (MODEL, "--devices", "4", "--no-cache")


def test_a_search_says_what_it_gains_over_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found"
    assert main(["search", *ASKED, "--out", str(out), "--against", "fsdp", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    told = document["against"]
    assert told["b"]["digest"] == read_plan(out / "plan.json").model.digest
    assert main(["evaluate", MODEL, "--devices", "4", "--strategy", "fsdp", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert told["totals"]["step_time_s"]["a"] == pytest.approx(known["step_time_s"], rel=1e-9)
    assert told["totals"]["step_time_s"]["b"] == document["step_time_s"]
    assert not any(s["what"] == "memory_limit_bytes" for s in told["settings"])


def test_several_and_a_plan_that_is_written_over_are_one_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The plan of last week lies where the new one goes."""
    out = str(tmp_path / "plan")
    assert main(["search", *ASKED, "--out", out, "--pin", "rest=data_parallel"]) == 0
    before = read_plan(tmp_path / "plan" / "plan.json").cost.step_time_s
    again = ["search", *ASKED, "--out", out, "--force", "--against", out, "--against", "ddp", "--json"]
    capsys.readouterr()
    assert main(again) == 0
    plans = json.loads(capsys.readouterr().out)["against"]["plans"]
    assert plans[0]["step_time_s"] == before
    assert [p["plan"] for p in plans[1:]] == ["ddp", f"{out}/plan.json"]


def test_what_does_not_fit_is_compared_and_said_not_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found"
    assert main(["search", *ASKED, "--out", str(found), "--json"]) == 0
    peak = json.loads(capsys.readouterr().out)["peak_memory_bytes"]
    limit = ("--memory-limit", f"{peak}B")
    asked = ["search", *ASKED, "--out", str(tmp_path / "b"), *limit, "--against", "ddp"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert ("ZeRO 0; does not fit" in out) == (" DOES NOT FIT" in _evaluated(limit, capsys))
    assert "memory limit" not in out


def _evaluated(limit: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    main(["evaluate", MODEL, "--devices", "4", "--strategy", "ddp", *limit])
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("against", "status", "words"),
    [
        (("--against", "fsp"), 2, ("--against fsp", "did you mean fsdp?")),
        (("--against", "megatron:tp=3"), 2, ("--against megatron:tp=3",)),
        (("--against", MODEL), 3, ("gpt_tiny.onnx",)),
    ],
)
def test_what_cannot_be_compared_is_said_before_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], against: tuple[str, ...], status: int, words: tuple[str, ...]
) -> None:
    assert main(["search", *ASKED, "--out", str(tmp_path / "none"), *against]) == status
    said = capsys.readouterr().err
    assert all(w in said for w in words)
    assert not (tmp_path / "none").exists()


def test_several_counts_of_devices_are_compared_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", MODEL, "--devices", "2,4", "--against", "ddp"]) == 2
    assert "one --devices" in capsys.readouterr().err
    asked = ("--devices", "8", "--hardware", "h100:4+a100-80:4", "--against", "ddp")
    assert main(["search", MODEL, *asked]) == 2
    assert "--against with --hardware" in capsys.readouterr().err
