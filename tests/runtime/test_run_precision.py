"""A run computes in the model's own types, and says so where the plan is for others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.builder import build
from planner.cli.main import main
from planner.planning import read_plan

pytest.importorskip("torch")
pytestmark = pytest.mark.peer

SIZES: dict[str, Any] = {"features": 16, "hidden": 32, "layers": 2, "classes": 8, "batch": 8}


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_run_says_in_which_precision_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], precision: str
) -> None:
    path = tmp_path / "mlp.onnx"
    path.write_bytes(build("mlp", SIZES).SerializeToString())
    search = ["search", str(path), "--devices", "2", "--hardware", "cpu", "--no-cache", "--precision", precision]
    assert main([*search, "--pin", "rest=data_parallel", "--out", str(tmp_path / "plan")]) == 0
    capsys.readouterr()
    assert main(["run", str(tmp_path / "plan"), str(path), "--steps", "1"]) == 0
    text = capsys.readouterr().out
    said = "computed in float32, as the model is, and planned for bf16: bytes of floats are twice the plan's"
    assert (said in text) == (precision == "bf16")
    assert ("MB, as planned" in text) == (precision == "fp32")
    assert main(["run", str(tmp_path / "plan"), str(path), "--steps", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["precision"] == {"planned": precision, "executed": "float32"}
    assert main(["run", str(tmp_path / "plan"), str(path), "--steps", "1", "--json", "--precision", "plan"]) == 0
    low = json.loads(capsys.readouterr().out.splitlines()[-1])
    halves = 2 if precision == "bf16" else 1
    assert {k: v["bytes"] * halves for k, v in low["collectives"].items()} == {
        k: v["bytes"] for k, v in document["collectives"].items()
    }
    assert low["loss"] == pytest.approx(document["loss"], rel=2e-2)
    moved = read_plan(tmp_path / "plan" / "plan.json").redistributions
    stated = sum(s.bytes for r in moved for s in r.steps if s.kind == "all_reduce")
    assert document["collectives"]["all_reduce"]["bytes"] == stated * (2 if precision == "bf16" else 1)
