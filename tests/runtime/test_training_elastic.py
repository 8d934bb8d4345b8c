"""Two of eight processes of a training die; it goes on with the devices that are left, to the same losses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main

pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

from tests.runtime.test_training_faults import SIZES, alive  # noqa: E402


def losses(arguments: list[str], kill_at: int = 0) -> tuple[dict[int, float], int, str]:
    """(loss by step, exit status, standard error) of planner run; two ranks are killed behind a step."""
    found: dict[int, float] = {}
    command = [sys.executable, "-m", "planner", "run", *arguments, "--seed", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        for line in ran.stdout:
            about: dict[str, Any] = json.loads(line)
            if "gradient_norm" in about:
                found[about["step"]] = about["loss"]
                if about["step"] == kill_at:
                    for process in alive(ran.pid)[2:4]:
                        os.kill(process, signal.SIGKILL)
        error = ran.stderr.read() if ran.stderr is not None else ""
    return found, ran.returncode, error


def test_a_training_goes_on_without_two_of_eight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "mlp.onnx"
    model.write_bytes(build("mlp", {**SIZES, "batch": 24}).SerializeToString())
    plan, new, saved = tmp_path / "plan", tmp_path / "new", tmp_path / "saved"
    search = ["search", str(model), "--devices", "8", "--hardware", "cpu", "--precision", "fp32", "--pin", "rest=zero"]
    assert main([*search, "--out", str(plan)]) == 0
    whole, status, error = losses([str(plan), str(model), "--steps", "60"])
    assert status == 0, error[-2000:]
    before, status, error = losses(
        [str(plan), str(model), "--steps", "60", "--save", str(saved), "--save-every", "5"], kill_at=12
    )
    assert status != 0
    assert "rank" in error
    capsys.readouterr()
    given = ["--plan", str(plan), "--lost", "3,7", "--out", str(new), "--checkpoint", str(saved), "--json"]
    assert main(["resume", *given]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == 6
    step = int(Path(document["checkpoint"]).name.removeprefix("step-"))
    assert step >= 10
    after, status, error = losses([str(new), str(model), "--steps", "50", "--load", document["checkpoint"]])
    assert status == 0, error[-2000:]
    assert list(after) == list(range(step + 1, step + 51))
    for number, loss in after.items():
        if number in whole:
            assert loss == pytest.approx(whole[number], rel=1e-5)
    assert before == {n: pytest.approx(whole[n], rel=1e-6) for n in before}
