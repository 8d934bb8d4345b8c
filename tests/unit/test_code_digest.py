"""What answers depend on of the code: that of the package and of what plugs into it, whatever the links."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from planner.cache import keys
from planner.cache.keys import source_digest


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """The folder of a package that registers by the group of the fixture's parameter."""
    folder = tmp_path / "a_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = EntryPoint("one", "a_plugin.operators", request.param)
    monkeypatch.setattr(keys, "entry_points", lambda *, group: [entry] if group == request.param else [])
    return folder


@pytest.mark.parametrize("plugin", ["planner.operators", "planner.rules", "planner.kernels"], indirect=True)
def test_what_a_plugin_brings_changes_it(plugin: Path) -> None:
    (plugin / "operators.py").write_text("WORK = 1\n")
    before = source_digest()
    assert source_digest() == before
    (plugin / "operators.py").write_text("WORK = 2\n")
    assert source_digest() != before


@pytest.mark.parametrize("plugin", ["planner.operators"], indirect=True)
def test_a_link_to_the_folder_above_is_followed_once(plugin: Path) -> None:
    (plugin / "deeper").mkdir()
    (plugin / "deeper" / "rules.py").write_text("WORK = 1\n")
    before = source_digest()
    (plugin / "deeper" / "around").symlink_to(plugin, target_is_directory=True)
    assert source_digest() == before


def test_cost_models_have_a_say_and_the_service_has_none() -> None:
    package = Path(keys.__file__).parents[1]
    names = {str(p.relative_to(package)) for p in keys._sources(package)}
    assert {"cost_models/link.py", "cost_models/profiles/h100.toml", "search/solve.py"} <= names
    assert not any(n.startswith("api/") for n in names)
