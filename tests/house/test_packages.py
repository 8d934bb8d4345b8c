"""One name is installed: `cost_models` and `api` belong to `planner`, wherever their folders lie."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.house.import_graph import ROOT


@pytest.mark.parametrize("name", ["api", "cost_models"])
def test_a_folder_of_the_root_is_imported_below_planner(name: str) -> None:
    module = importlib.import_module(f"planner.{name}")
    assert module.__file__ is not None
    assert Path(module.__file__).resolve() == ROOT / name / "__init__.py"


def test_commands_are_found_below_planner() -> None:
    ours = [e for e in entry_points(group="planner.commands") if e.dist is not None and e.dist.name == "graph-planner"]
    assert ours
    assert all(e.value.startswith("planner.") for e in ours)


def test_a_wheel_holds_one_name(tmp_path: Path) -> None:
    """Built by the same backend as a release, without its compiled kernels; the links are folders in it."""
    source = tmp_path / "source"
    source.mkdir()
    for name in ("planner", "api", "cost_models"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "sample_graphs"):
        (source / name).symlink_to(ROOT / name)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"planner"}
    for module in ("api/app.py", "cost_models/link.py", "cost_models/profiles/h100.toml"):
        assert names.count(f"planner/{module}") == 1
