"""`planner calibrate` as far as it goes without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.runtime.measure.quiet import CLEAN, steady


def test_without_pytorch_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("planner.runtime.extra.find_spec", lambda name: None)
    assert main(["calibrate", "--out", str(tmp_path / "here.toml")]) == 2
    assert "graph-planner[torch]" in capsys.readouterr().err
    assert not (tmp_path / "here.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--out", "here.json"], 2, "ends in .toml"),
        (["--out", "here.toml", "--base", "nothing"], 3, "expected one of"),
        (["--out", "here.toml", "--rows", "rows.json"], 2, "--rows rows.json"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    arguments: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", *arguments]) == status
    assert says in capsys.readouterr().err


def test_commands_do_not_import_torch() -> None:
    code = "import sys; import planner.cli.main, planner.runtime.extra; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_disturbed_iterations_do_not_count() -> None:
    calm = [(1.0, 0.0), (1.1, 0.5 * CLEAN), (0.9, 0.0), (1.0, 0.0)]
    assert steady([*calm, (5.0, 4.0), (3.0, 2.0), (9.0, 8.0)]) == pytest.approx(1.0)


def test_where_all_are_disturbed_the_calmest_count() -> None:
    assert steady([(2.0, 0.9), (2.1, 1.0), (2.2, 1.1), *[(9.0, 8.0)] * 5]) == pytest.approx(2.1)


def test_no_iterations_are_refused() -> None:
    with pytest.raises(ValueError, match="no iteration"):
        steady([])
