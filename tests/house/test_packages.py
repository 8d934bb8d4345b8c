"""One name is installed: `cost_models` and `api` belong to `planner`, wherever their folders lie."""

from __future__ import annotations

import ast
import importlib
import os
import shutil
import subprocess
import sys
import tarfile
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


def test_cost_models_know_nothing_of_planner() -> None:
    """Plain numbers in, seconds and bytes out: not even a name of what asks them."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in (ROOT / "cost_models").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(n.partition(".")[0] in ("planner", "api") for n in _imported(node))
    ]
    assert named == []


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [a.name for a in node.names]
    return [] if node.level else [node.module or ""]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release is built from, without what was compiled here."""
    folder = tmp_path_factory.mktemp("source")
    for name in ("planner", "api", "cost_models", "sample_graphs"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def built(target: str, source: Path, folder: Path) -> Path:
    """By the backend that a release is built by."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True)
    (file,) = folder.glob("graph_planner-*")
    return file


@pytest.mark.parametrize("unpacked", [False, True], ids=["a checkout", "a source distribution"])
def test_a_wheel_holds_all_of_one_name(unpacked: bool, source: Path, tmp_path: Path) -> None:
    """The links of a checkout are folders in it, whatever it was built from."""
    if unpacked:
        (tmp_path / "sdist").mkdir()
        with tarfile.open(built("sdist", source, tmp_path / "sdist")) as archive:
            archive.extractall(tmp_path, filter="data")
        (source,) = tmp_path.glob("graph_planner-*")
    (tmp_path / "wheel").mkdir()
    names = zipfile.ZipFile(built("wheel", source, tmp_path / "wheel")).namelist()
    assert len(names) == len(set(names))
    assert {n.split("/")[0] for n in names if ".dist-info/" not in n} == {"planner"}
    here = {
        str(Path("planner", *above, p.relative_to(ROOT / folder)))
        for folder, above in (("planner", ()), ("api", ("api",)), ("cost_models", ("cost_models",)))
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and p.suffix != ".so" and "__pycache__" not in p.parts
    }
    assert here <= set(names)


def test_children_of_an_installed_service_find_the_package_and_hide_no_other_module(
    source: Path, tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    zipfile.ZipFile(built("wheel", source, tmp_path)).extractall(installed)
    code = "import os; from planner.api.jobs.forks import ForkServer; ForkServer(); print(os.environ['PYTHONPATH'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(installed)
