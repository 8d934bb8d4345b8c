"""The DTensor plan: placements, what is refused, and what the files say; run on PyTorch in tests/peer."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.main import main
from planner.emit.torch.placements import placements
from planner.ir import DeviceMesh, Layout, Reduction

SAMPLES = Path(__file__).parents[2] / "sample_graphs"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_every_axis_splits_the_dimension_that_the_layout_says(sizes: list[int], data: st.DataObject) -> None:
    mesh = DeviceMesh.of(*sizes)
    where = [data.draw(st.integers(-1, 2)) for _ in sizes]
    layout = Layout(tuple(tuple(n for n, d in zip(mesh.names, where, strict=True) if d == i) for i in range(3)))
    assert placements(layout, mesh) == [None if d < 0 else d for d in where]


def test_what_dtensor_has_no_words_for_is_refused() -> None:
    mesh = DeviceMesh.of(2, 2)
    with pytest.raises(ValueError, match=r"cuts a dimension by y\.x"):
        placements(Layout((("y", "x"),)), mesh)
    with pytest.raises(ValueError, match="pending sum"):
        placements(Layout(((),), (("x", Reduction.SUM),)), mesh)


def plan(folder: Path, *pins: str) -> str:
    options = [o for p in pins for o in ("--pin", p)]
    arguments = ["search", str(SAMPLES / "mlp.onnx"), "--devices", "4", "--hardware", "cpu", "--no-cache"]
    assert main([*arguments, "--out", str(folder), *options]) == 0
    return str(folder / "plan.json")


def test_files_say_what_the_plan_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = plan(tmp_path / "plan", "mesh=4", "rest=zero")
    assert main(["emit", path, "--target", "torch", "--out", str(tmp_path / "out")]) == 0
    assert "DTensor derives them" in capsys.readouterr().out
    document: dict[str, Any] = json.loads((tmp_path / "out" / "parallel_plan.json").read_text(encoding="utf-8"))
    made = json.loads(Path(path).read_text(encoding="utf-8"))
    assert document["mesh"] == {"sizes": [4], "names": ["x"]}
    for name, p in made["parameters"].items():
        told = document["parameters"][name]
        for key, layout in (("kept", p["stored"]), ("computed", p["compute"][0])):
            assert told[key] == [next((d for d, axes in enumerate(layout["dims"]) if "x" in axes), None)]
    assert any(p["kept"] != p["computed"] for p in document["parameters"].values())
    ast.parse((tmp_path / "out" / "parallel.py").read_text(encoding="utf-8"))
    assert (tmp_path / "out" / "run_torchrun.sh").stat().st_mode & 0o100
