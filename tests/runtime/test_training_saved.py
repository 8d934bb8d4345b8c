"""Checkpoints of a training that was broken off while one took the place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peer

from planner.runtime.training.checkpoint import clear  # noqa: E402  torch may be missing
from planner.runtime.workers import Context  # noqa: E402


def checkpoint(folder: Path, name: str, content: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "training.json").write_text(content)


def test_what_was_to_be_replaced_comes_back(tmp_path: Path) -> None:
    checkpoint(tmp_path, ".step-00000003.old", "before")
    checkpoint(tmp_path, ".step-00000003.part", "half")
    clear(Context(0, 1, torch.device("cpu")), tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000003"]
    assert (tmp_path / "step-00000003/training.json").read_text() == "before"


def test_what_was_replaced_goes_away(tmp_path: Path) -> None:
    checkpoint(tmp_path, ".step-00000003.old", "before")
    checkpoint(tmp_path, "step-00000003", "after")
    clear(Context(0, 1, torch.device("cpu")), tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["step-00000003"]
    assert (tmp_path / "step-00000003/training.json").read_text() == "after"
