"""A training that is started again goes on, on as many devices as there are."""

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

from tests.runtime.test_training_faults import SIZES, TORCHRUN, alive  # noqa: E402

RESUMING = ["--seed", "0", "--save-every", "2", "--resume", "--json"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A folder of plans for two and for four devices, and their model."""
    folder = tmp_path_factory.mktemp("mlp")
    (folder / "mlp.onnx").write_bytes(build("mlp", SIZES).SerializeToString())
    search = ["search", str(folder / "mlp.onnx"), "--devices", "2,4", "--hardware", "cpu", "--no-cache"]
    assert main([*search, "--precision", "fp32", "--pin", "rest=zero", "--out", str(folder / "plans")]) == 0
    return str(folder / "plans"), str(folder / "mlp.onnx")


def resumed(given: tuple[str, str], count: int, steps: int, save: Path) -> dict[int, float]:
    """The steps that so many processes have made, with their losses."""
    command = [*TORCHRUN, str(count), "-m", "planner", "run", *given, "--steps", str(steps), "--save", str(save)]
    done = subprocess.run([*command, *RESUMING], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    return {d["step"]: d["loss"] for d in lines if "gradient_norm" in d}


def test_another_number_of_devices_goes_on(given: tuple[str, str], tmp_path: Path) -> None:
    whole = resumed(given, 2, 6, tmp_path / "whole")
    assert list(whole) == [1, 2, 3, 4, 5, 6]
    parts = [resumed(given, count, steps, tmp_path / "parts") for count, steps in ((4, 2), (2, 4), (4, 6))]
    assert [list(p) for p in parts] == [[1, 2], [3, 4], [5, 6]]
    found = {step: loss for p in parts for step, loss in p.items()}
    assert found == {step: pytest.approx(loss, rel=1e-6) for step, loss in whole.items()}
    assert resumed(given, 2, 6, tmp_path / "parts") == {}


def test_ranks_that_torchrun_starts_again_go_on(given: tuple[str, str], tmp_path: Path) -> None:
    """One is killed when there is a checkpoint."""
    whole = resumed(given, 2, 400, tmp_path / "whole")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
    job = ["--nproc-per-node", "2", "-m", "planner", "run", *given, "--steps", "400", "--save", str(tmp_path / "again")]
    steps: dict[int, float] = {}
    begins: list[int] = []
    with subprocess.Popen([*launch, *job, *RESUMING], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        before = 0
        for line in ran.stdout:
            found = json.loads(line)
            if "gradient_norm" not in found:
                continue
            if found["step"] != before + 1:
                begins.append(found["step"])
            before = found["step"]
            steps[before] = found["loss"]
            if before == 9 and not begins:
                os.kill(alive(ran.pid, b"planner")[1], signal.SIGKILL)
        error = ran.stderr.read() if ran.stderr is not None else ""
    assert ran.returncode == 0, error[-2000:]
    assert len(begins) == 1
    assert begins[0] % 2 == 1
    assert 9 <= begins[0] < 400
    assert steps == {step: pytest.approx(loss, rel=1e-6) for step, loss in whole.items()}


def test_what_contradicts_itself_is_refused(
    given: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(Path(given[0]) / "plan-2.json")
    assert main(["run", plan, given[1], "--resume"]) == 2
    assert "no --save says where" in capsys.readouterr().err
    both = ["--resume", "--save", str(tmp_path), "--load", str(tmp_path)]
    assert main(["run", plan, given[1], *both]) == 2
    assert "leave one of the two out" in capsys.readouterr().err
    assert main(["run", *given]) == 2
    assert "holds plans for 2, 4 devices; name one, such as " in capsys.readouterr().err
