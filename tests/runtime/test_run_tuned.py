"""`planner run --autotune`: of several plans the fastest is run, and every rank runs the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main

pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

from tests.runtime.test_training_faults import TORCHRUN  # noqa: E402

SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 32, "batch": 8}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The folder of three plans for two devices, and their model."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "gpt.onnx").write_bytes(build("gpt", SIZES).SerializeToString())
    search = ["search", str(folder / "gpt.onnx"), "--devices", "2", "--hardware", "cpu", "--no-cache"]
    several = ["--precision", "fp32", "--space", "whole", "--top-k", "3"]
    assert main([*search, *several, "--out", str(folder / "plan")]) == 0
    return str(folder / "plan"), str(folder / "gpt.onnx")


def test_the_fastest_is_run(given: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["run", *given, "--autotune", "3", "--json"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    measured = {row["plan"]: row["measured_s"] for row in found["autotune"]}
    assert list(measured) == [str(Path(given[0]) / n) for n in ("plan.json", "plan-2.json", "plan-3.json")]
    assert found["plan"] == min(measured, key=measured.__getitem__)
    chosen = json.loads(Path(found["plan"]).read_text())
    assert all(row["predicted_s"] > 0 for row in found["autotune"])
    assert found["autotune"][list(measured).index(found["plan"])]["predicted_s"] == chosen["cost"]["step_time_s"]
    assert found["collectives"] == found["planned"]
    assert [line.split()[0] for line in shown.err.splitlines()] == ["plan.json", "plan-2.json", "plan-3.json"]


def test_ranks_of_a_launcher_train_the_same(given: tuple[str, str]) -> None:
    run = ["2", "-m", "planner", "run", *given, "--autotune", "3", "--steps", "2", "--json"]
    found = subprocess.run([*TORCHRUN, *run], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    *steps, end = [json.loads(line) for line in found.stdout.splitlines()]
    assert [s["step"] for s in steps] == [1, 2]
    assert end["plan"] in {row["plan"] for row in end["autotune"]}
    assert end["collectives"] == end["planned"]


def test_as_many_as_there_are_are_tried(given: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["run", *given, "--autotune", "9", "--steps", "1"]) == 0
    assert "the fastest of 3 plans is " in capsys.readouterr().out


def test_one_plan_alone_is_refused(given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text((Path(given[0]) / "plan.json").read_text())
    assert main(["run", str(plan), given[1], "--autotune", "2"]) == 2
    assert "there is no " in (said := capsys.readouterr().err)
    assert "--top-k 2" in said


def test_a_plan_of_another_job_is_refused(
    given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["search", given[1], "--devices", "4", "--hardware", "cpu", "--no-cache", "--out", str(tmp_path)]
    assert main(search) == 0
    (tmp_path / "plan.json").rename(tmp_path / "plan-2.json")
    (tmp_path / "plan.json").write_text((Path(given[0]) / "plan.json").read_text())
    assert main(["run", str(tmp_path), given[1], "--autotune", "2"]) == 2
    assert "plan-2.json is for another model, number of devices or mode" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", *given, "--autotune", "1"])
