"""Whatever goes wrong in a training ends all ranks, with one message that says what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.builder import build
from planner.cli.main import main

pytest.importorskip("torch")
pytestmark = [pytest.mark.peer, pytest.mark.slow]

SIZES: dict[str, Any] = {"features": 16, "hidden": 32, "layers": 2, "classes": 8, "batch": 8}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
PLANNER = [sys.executable, "-m", "planner", "run"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A plan for two devices, and its model."""
    folder = tmp_path_factory.mktemp("mlp")
    (folder / "mlp.onnx").write_bytes(build("mlp", SIZES).SerializeToString())
    search = ["search", str(folder / "mlp.onnx"), "--devices", "2", "--hardware", "cpu", "--no-cache"]
    pins = ["--precision", "fp32", "--pin", "rest=data_parallel"]
    assert main([*search, *pins, "--out", str(folder / "plan")]) == 0
    return str(folder / "plan"), str(folder / "mlp.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "features.npy", rng.standard_normal((32, 16), dtype=np.float32))
    np.save(tmp_path / "labels.npy", rng.integers(0, 8, 32))
    return tmp_path


def changed(file: Path, change: Callable[[Any], None]) -> None:
    value = np.load(file)
    change(value)
    np.save(file, value)


def alive(parent: int, word: bytes = b"spawn_main") -> list[int]:
    """The workers of a process, which have a word in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and word in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except (OSError, ValueError):  # no process, or one that has ended meanwhile
            continue
    return sorted(found)


def test_every_step_is_a_line_and_the_end_a_document(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    asked = ["--data", str(data), "--steps", "3", "--optimizer", "sgd", "--lr", "0.1", "--clip", "1"]
    assert main(["run", *given, *asked, "--save", str(data / "saved"), "--save-every", "2", "--json"]) == 0
    *steps, end = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [s["step"] for s in steps] == [1, 2, 3]
    assert [s["saved"] is not None for s in steps] == [False, True, True]
    assert all(s["samples_per_second"] > 0 and s["gradient_norm"] > 0 for s in steps)
    assert (end["step"], end["loss"], end["ok"]) == (3, steps[-1]["loss"], True)
    assert end["collectives"] == end["planned"]
    assert end["weights"].startswith("drawn from seed 0")
    assert end["optimizer"] == {"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.0, "momentum": 0.0, "clip": 1.0}
    assert main(["run", *given, "--data", str(data), "--load", str(data / "saved")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("step      4  loss ")
    assert f"weights: {data / 'saved' / 'step-00000003'}" in text


def test_a_profile_is_of_steps_behind_the_last_which_change_nothing(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--data", str(data), "--steps", "2", "--save", str(data / "saved")]
    capsys.readouterr()
    assert main(["run", *given, *asked, "--profile", str(data / "profile")]) == 0
    text = capsys.readouterr().out
    assert "operators, by type" in text
    found = json.loads((data / "profile" / "profile.json").read_text())
    assert found["held_bytes"] > 0
    assert {"forward", "backward"} <= {r["kind"] for r in found["rows"]}
    assert json.loads((data / "profile" / "trace.json").read_text())["traceEvents"]
    assert main(["run", *given, "--data", str(data), "--load", str(data / "saved"), "--json"]) == 0
    watched = json.loads(capsys.readouterr().out.splitlines()[0])
    assert main(["run", *given, "--data", str(data), "--steps", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[2])["loss"] == watched["loss"]


def test_a_profile_that_cannot_be_written_is_known_before_a_step(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "file").write_text("")
    capsys.readouterr()
    assert main(["run", *given, "--profile", str(data / "file")]) == 2
    out, error = capsys.readouterr()
    assert not out
    assert "cannot be made" in error


def test_a_number_that_is_none_ends_the_training_and_is_found(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(data / "features.npy", lambda v: v.__setitem__((13, 3), np.nan))  # of the second step, on the second rank
    capsys.readouterr()
    assert main(["run", *given, "--data", str(data), "--steps", "4"]) == 1
    out, error = capsys.readouterr()
    assert out.count("\n") == 1
    assert "error: step 2: the loss is nan; the first tensor that is not finite is features (input), on rank 1" in error


def test_a_rate_that_is_too_high_is_found_where_it_shows(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(data / "features.npy", lambda v: v.__imul__(1e18))
    assert main(["run", *given, "--data", str(data), "--steps", "4", "--optimizer", "sgd", "--lr", "1e30"]) == 1
    error = capsys.readouterr().err
    assert "error: step 2: " in error
    assert "the first tensor that is not finite is layers.0." in error
    assert "(parameter), on rank 0" in error


def test_a_label_of_no_class_is_named_before_anything_waits(
    given: tuple[str, str], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(data / "labels.npy", lambda v: v.__setitem__(9, 8))
    capsys.readouterr()
    assert main(["run", *given, "--data", str(data), "--steps", "4"]) == 3
    out, error = capsys.readouterr()
    assert out.count("\n") == 1
    assert "labels.npy: the input labels has 8 in the 8 samples from 8 on; expected numbers from 0 to 7" in error
    assert "Traceback" not in error


def test_a_worker_that_is_killed_ends_all(given: tuple[str, str]) -> None:
    command = [*PLANNER, *given, "--steps", "1000000", "--seed", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("step      1  loss ")
        workers = alive(started.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        _, error = started.communicate(timeout=60)
    assert started.returncode == 1
    assert error.strip().splitlines()[-1].startswith("planner run: error: rank ")
    assert "was ended by SIGKILL" in error
    assert "Traceback" not in error
    assert not [w for w in workers if Path(f"/proc/{w}").exists()]


def test_workers_end_with_the_command(given: tuple[str, str]) -> None:
    command = [*PLANNER, *given, "--steps", "1000000", "--seed", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as started:
        assert started.stdout is not None
        started.stdout.readline()
        workers = alive(started.pid)
        started.kill()
    end = time.monotonic() + 30
    while any(Path(f"/proc/{w}").exists() for w in workers) and time.monotonic() < end:
        time.sleep(0.1)
    assert not [w for w in workers if Path(f"/proc/{w}").exists()]


def test_torchrun_trains_and_one_rank_speaks(given: tuple[str, str], data: Path) -> None:
    command = [*TORCHRUN, "2", "-m", "planner", "run", *given, "--data", str(data), "--steps", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [d["step"] for d in lines] == [1, 2, 2]
    assert lines[-1]["ok"]


def test_a_rank_of_torchrun_that_is_killed_ends_all(given: tuple[str, str]) -> None:
    command = [*TORCHRUN, "2", "-m", "planner", "run", *given, "--steps", "1000000", "--seed", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith("step      1  loss ")
        ranks = alive(started.pid, b"planner")
        assert len(ranks) == 2
        os.kill(ranks[1], signal.SIGKILL)
        _, error = started.communicate(timeout=60)
    assert started.returncode != 0
    assert error.count("planner run: error: ") <= 1  # torchrun may be faster
    assert not [r for r in ranks if Path(f"/proc/{r}").exists()]


def test_another_number_of_ranks_is_said_once(given: tuple[str, str]) -> None:
    command = [*TORCHRUN, "3", "-m", "planner", "run", *given, "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert done.stderr.count("the plan is for 2 devices, and torchrun started 3; start 2") == 1
    assert "planner/" not in done.stderr.split("ChildFailedError")[0]  # no traceback of ours


def test_what_torchrun_s_ranks_find_in_data_is_said_once(given: tuple[str, str], data: Path) -> None:
    changed(data / "features.npy", lambda v: v.__setitem__((13, 3), np.inf))
    command = [*TORCHRUN, "2", "-m", "planner", "run", *given, "--data", str(data), "--steps", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode != 0
    assert done.stderr.count("planner run: error: ") == 1
    assert "error: step 2: the loss is " in done.stderr


def test_ranks_of_mpirun_join(given: tuple[str, str], data: Path) -> None:
    """By the variables that Open MPI sets."""
    port = 29500 + os.getpid() % 1000
    ranks = []
    for rank in range(2):
        mpi = {"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_LOCAL_RANK": rank,
               "OMPI_COMM_WORLD_LOCAL_SIZE": 2, "MASTER_PORT": port}  # fmt: skip
        command = [*PLANNER, *given, "--data", str(data), "--steps", "2", "--save", str(data / "saved")]
        environment = {**os.environ, **{k: str(v) for k, v in mpi.items()}}
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                      env=environment))  # fmt: skip
    found = [r.communicate(timeout=300) for r in ranks]
    assert [r.returncode for r in ranks] == [0, 0], found
    assert found[0][0].startswith("step      1  loss ")
    assert found[1][0] == ""
    assert (data / "saved" / "step-00000002" / ".metadata").is_file()


def test_ranks_of_several_hosts_must_know_where_to_meet(
    given: tuple[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "SIZE": "2", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert main(["run", *given, "--steps", "1"]) == 2
    assert "hand them MASTER_ADDR, the host of rank 0 (mpirun -x MASTER_ADDR=HOST" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--check", "--lr", "1"], "--check and --lr"),
        (["--save-every", "2"], "--save-every: no --save"),
        (["--weights", "w", "--load", "c"], "--weights and --load"),
        (["--lr", "-1"], "expected a number from 0 on"),
        (["--clip", "nan"], "expected a number above 0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: tuple[str, str], options: list[str], words: str) -> None:
    done = subprocess.run([*PLANNER, *given, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert words in done.stderr


def test_help_needs_no_torch() -> None:
    text = "import sys; from planner.cli.main import main\ntry: main(['run', '--help'])\n" \
           "finally: print('torch' in sys.modules)"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False"
    assert "--save-every" in done.stdout
