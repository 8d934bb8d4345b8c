"""The page works in a browser: drop, watch, report, compare, refusals, keys, dark and narrow."""

from __future__ import annotations

import pytest

from tests.browser.page import drive
from tests.service.process import served

pytestmark = pytest.mark.slow


def test_the_page_from_the_first_model_to_the_comparison_of_two_plans(browser, tmp_path):
    with served(tmp_path, "--workers", "1") as service:
        told = drive(browser, service.url, tmp_path, None, long=False)
    assert told["sent_bytes"] < told["model_bytes"] / 4, "the weights stayed in the browser"
