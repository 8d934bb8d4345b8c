"""The page of a plan: one file, nothing loaded, and nothing of the model that could run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest

from planner.planning import PlanDocument
from planner.report import report_html
from planner.report.html import CONTENT_POLICY, SCRIPT_HASHES, STYLE_HASHES, embedded
from planner.report.html.data import page_data
from planner.report.view import view
from tests.unit.report_plans import EVIL, deepened, hostile, old, plan_of


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.text.setdefault(self._inside, []).append(data)


@pytest.fixture(scope="module", params=["plain", "hostile"])
def plan(request: pytest.FixtureRequest) -> PlanDocument:
    return plan_of("megatron") if request.param == "plain" else hostile(plan_of("megatron"))


def unpacked(page: _Page) -> dict[str, Any]:
    packed = json.loads(page.text["script"][0])
    out: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)).decode("utf-8", "surrogatepass"))
    return out


def test_the_page_has_one_script_one_style_and_loads_nothing(plan: PlanDocument) -> None:
    page = _Page(report_html(plan))
    tags = [t for t, _ in page.tags]
    assert tags.count("style") == 1
    assert tags.count("script") == 2
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(tags)
    for _, attributes in page.tags:
        assert not {"src", "href", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)


def test_the_policy_allows_this_script_and_this_style_alone(plan: PlanDocument) -> None:
    text = report_html(plan)
    page = _Page(text)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy == CONTENT_POLICY["report"]
    assert "default-src 'none'" in str(policy)
    assert "unsafe" not in str(policy)

    def hashed(tag: str) -> str:
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()

    assert hashed("script") == SCRIPT_HASHES["report"]
    assert hashed("style") in STYLE_HASHES


def test_names_are_text_in_the_page(plan: PlanDocument) -> None:
    text = report_html(plan)
    assert text.count("<script") == 2
    assert "<img" not in text
    assert all(name not in text for name in EVIL if "<" in name)
    text.encode("utf-8")


def test_the_data_is_the_view_of_the_plan(plan: PlanDocument) -> None:
    data = unpacked(_Page(report_html(plan)))
    assert data == json.loads(json.dumps(page_data(view(plan))))
    assert [r[0] for r in data["operators"]] == list(plan.operators)
    assert data["report"]["cost"] == plan.cost.model_dump()
    assert len(data["moves"]) == len(plan.redistributions)


def test_data_of_any_kind_comes_out_as_it_went_in() -> None:
    given = {"a": list(EVIL), "b": [1, 2.5, None, True]}
    packed = embedded(given)
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", packed)
    assert json.loads(zlib.decompress(base64.b64decode(packed)).decode("utf-8", "surrogatepass")) == given


def test_a_plan_without_times_has_a_page() -> None:
    data = unpacked(_Page(report_html(old(plan_of("megatron")))))
    assert data["report"]["timed"] is False
    assert all(not r[12] for r in data["operators"])


def test_equal_plans_are_equal_pages_and_large_ones_stay_small() -> None:
    plan = deepened(plan_of("megatron"), 40)
    assert report_html(plan) == report_html(plan)
    assert len(report_html(plan)) < 500_000
