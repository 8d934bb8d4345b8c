"""Equal requests give equal bytes: whatever the hash seed, the number of threads, and what was searched before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.semantics_model import transformer

RUN = "import sys; from planner.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "transformer.onnx"
    path.write_bytes(transformer())
    return path


def plan(model: Path, name: str, *extra: str, **environment: str) -> bytes:
    out = model.parent / name
    command = [sys.executable, "-c", RUN, "search", str(model), "--devices", "8", "--out", str(out), *extra]
    subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    return (out / "plan.json").read_bytes()


@pytest.mark.parametrize("extra", [("--reproducible",), ()])
def test_hash_seeds_and_threads_have_no_say(model: Path, extra: tuple[str, ...]) -> None:
    seeds = [("0", "1"), ("1", "2"), ("4711", "1")][: 3 if extra else 2]
    found = {
        plan(model, f"{seed}", *extra, "--no-cache", PYTHONHASHSEED=seed, OMP_NUM_THREADS=n, OPENBLAS_NUM_THREADS=n)
        for seed, n in seeds
    }
    assert len(found) == 1


def test_what_is_kept_has_no_say(model: Path) -> None:
    cold = plan(model, "cold", "--reproducible", "--no-cache")
    plan(model, "other", "--batch", "8")
    assert plan(model, "beside", "--reproducible") == cold
    assert plan(model, "kept", "--reproducible") == cold
