"""`planner run --autotune`: of several plans the fastest is run, and every rank runs the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.errors import UsageError

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


def test_plans_of_several_micro_batches_are_of_one_job(
    given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The graph of a micro-batch has other shapes than that of the whole batch."""
    search = ["search", given[1], "--devices", "2", "--hardware", "cpu", "--precision", "fp32", "--no-cache"]
    for count in (1, 2, 4):
        strategy = f"megatron:dp=2,micro_batch={4 // count},zero=1"
        assert main([*search, "--strategy", strategy, "--out", str(tmp_path / str(count))]) == 0
    for k, count in ((1, 1), (3, 2), (4, 4)):  # plan-2.json is not there
        text = (tmp_path / str(count) / "plan.json").read_text()
        (tmp_path / ("plan.json" if k == 1 else f"plan-{k}.json")).write_text(text)
    capsys.readouterr()
    assert main(["run", str(tmp_path), given[1], "--autotune", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [Path(row["plan"]).name for row in found["autotune"]] == ["plan.json", "plan-3.json", "plan-4.json"]
    assert found["plan"] == min(found["autotune"], key=lambda row: row["measured_s"])["plan"]


def test_a_plan_that_is_refused_is_not_tried(
    given: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from planner.runtime import tried

    calls = iter([None, UsageError("not this one"), None])

    def check(*_: Any) -> None:
        if (error := next(calls)) is not None:
            raise error

    monkeypatch.setattr(tried, "check", check)
    capsys.readouterr()
    assert main(["run", *given, "--autotune", "3", "--json"]) == 0
    shown = capsys.readouterr()
    second = json.loads(shown.out)["autotune"][1]
    assert (second["measured_s"], second["refused"]) == (None, "not this one")
    assert "plan-2.json  not tried: not this one" in shown.err


def test_a_plan_of_another_job_is_refused(
    given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["search", given[1], "--devices", "4", "--hardware", "cpu", "--no-cache", "--out", str(tmp_path)]
    assert main(search) == 0
    (tmp_path / "plan.json").rename(tmp_path / "plan-2.json")
    (tmp_path / "plan.json").write_text((Path(given[0]) / "plan.json").read_text())
    assert main(["run", str(tmp_path), given[1], "--autotune", "2"]) == 2
    assert "plan-2.json is for another model, batch, number of devices or mode" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["run", *given, "--autotune", "1"])
