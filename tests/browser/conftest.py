"""Pages are tried in a real browser, which no Python package brings: where there is none, these tests say so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.chromium import chromium, launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    pytest.importorskip("playwright.sync_api")
    if chromium() is None:
        pytest.skip("no Chromium here: PLANNER_CHROMIUM says where it is")
    with launched() as running:
        yield running
