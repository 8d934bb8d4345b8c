"""What holds for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's cache, nor what another test left."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(folder))
    return folder
