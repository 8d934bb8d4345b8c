"""`planner calibrate` as far as it goes without PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.runtime.quiet import CLEAN, Meter, steady


def test_without_pytorch_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("planner.runtime.extra.find_spec", lambda name: None)
    assert main(["calibrate", "--out", str(tmp_path / "here.toml")]) == 2
    assert "pip install '.[torch]' in the repository" in capsys.readouterr().err
    assert not (tmp_path / "here.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--out", "here.json"], 2, "ends in .toml"),
        (["--out", "here.toml", "--base", "nothing"], 3, "expected one of"),
        (["--out", "here.toml", "--rows", "missing.json"], 3, "missing.json"),
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


def test_disturbed_times_do_not_count() -> None:
    calm = [(1.0, 0.0), (1.1, 0.5 * CLEAN), (0.9, 0.0), (1.0, 0.0)]
    assert steady([*calm, (5.0, 0.9), (3.0, 0.5), (9.0, 1.5)]) == pytest.approx(1.0)


def test_where_all_are_disturbed_the_calmest_count() -> None:
    assert steady([(2.0, 0.5), (2.2, 0.6), *[(9.0, 1.5)] * 6]) == pytest.approx(2.1)


def test_nothing_timed_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        steady([])


def test_what_the_workers_computed_is_no_disturbance() -> None:
    assert Meter().disturbance(workers=1e9) == 0.0
