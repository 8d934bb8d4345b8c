"""Every hostile file through the command line: a plan or one clear screen, never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main

FILES = sorted(Path(__file__).parent.glob("*.onnx"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_search_ends_in_a_plan_or_a_clear_error(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["search", str(file), "--devices", "4", "--out", str(tmp_path)])
    message = capsys.readouterr().err
    assert status in (0, 3, 4)
    assert status != 4 or "cannot fit" in message or "no plan was found that fits" in message
    if status == 3:
        assert message.startswith("planner search: error: ")
        assert len(message.splitlines()) <= 24
