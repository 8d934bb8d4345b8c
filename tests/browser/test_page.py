"""The page works in a browser: drop, watch, report, compare, refusals, keys, dark and narrow."""

from __future__ import annotations

import pytest

pytest.importorskip("playwright.sync_api")

from tests.browser.page import browser, chromium, drive
from tests.service.process import served

pytestmark = [pytest.mark.slow, pytest.mark.skipif(chromium() is None, reason="no Chromium on the path")]


def test_the_page_from_the_first_model_to_the_comparison_of_two_plans(tmp_path):
    with browser() as running, served(tmp_path, "--workers", "1") as service:
        told = drive(running, service.url, tmp_path, None, long=False)
    assert told["sent_bytes"] < told["model_bytes"] / 4, "the weights stayed in the browser"
