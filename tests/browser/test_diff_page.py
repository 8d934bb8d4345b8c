"""The page of two plans in a browser: nothing is complained about, and both graphs do what one does.

Needs playwright and Chromium (`PLANNER_CHROMIUM`, or one on the path).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from planner.report.diff import Column, diff, page_of, several_html
from tests.unit.diff_plans import PAIRS, edited, hostile, searched

pytestmark = pytest.mark.slow
VIOLATIONS = "addEventListener('securitypolicyviolation', (e) => console.error('policy', e.violatedDirective))"
Show = Callable[..., Any]


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Show]:
    """Opens a page from a file; what it complains about fails the test."""
    said: list[str] = []
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    context.add_init_script(VIOLATIONS)

    def opened(content: str, graphs: bool = True) -> Any:
        file = tmp_path / "diff.html"
        file.write_bytes(content.encode())
        page = context.new_page()
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("dialog", lambda d: (said.append(d.message), d.dismiss()))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]")
        if graphs:
            page.locator("#changes > summary").click()
            page.wait_for_selector("#changes[open] .graph")
        return page

    yield opened
    context.close()
    assert said == []


def opened_nodes(page: Any, side: int) -> set[str]:
    boxes = page.locator(".graph").nth(side).locator(".box.open")
    return {boxes.nth(i).locator("> .title").first.text_content() for i in range(boxes.count())}


APART = """(side) => {
  const papers = [...document.querySelectorAll(".paper")];
  const middle = (e) => { const r = e.getBoundingClientRect(); return (r.top + r.bottom) / 2; };
  const far = (box, paper) => middle(box) - middle(paper);
  const boxes = [...papers[side].querySelectorAll(".box.operator")];
  const here = boxes.reduce((p, q) => (Math.abs(far(p, papers[side])) < Math.abs(far(q, papers[side])) ? p : q));
  const there = papers[1 - side].querySelector(`[data-node="${here.dataset.node}"]`);
  return Math.abs(far(here, papers[side]) - far(there, papers[1 - side]));
}"""
"""How far, in pixels, the operator in the middle of one graph stands from where the same one stands in the other."""


@pytest.mark.parametrize(("a", "b"), [*PAIRS, ("data", "data")])
def test_pages_open_without_a_complaint(show: Show, a: str, b: str) -> None:
    page = show(page_of(diff(searched(a), searched(b))))
    changes = page.locator(".change")
    for i in range(min(3, changes.count())):
        changes.nth(i).click()
        assert page.locator(".details-row h3").first.is_visible()
    page.get_by_role("button", name="open the next level of boxes").click()
    page.get_by_role("button", name="fit the width").click()


def test_names_of_models_do_nothing(show: Show) -> None:
    page = show(page_of(diff(edited(searched("data"), hostile), edited(searched("tensor"), hostile))))
    page.locator(".change").first.click()
    page.get_by_role("button", name="open the next level of boxes").click()
    assert page.locator("img").count() == 0


def test_what_opens_on_one_side_opens_on_the_other(show: Show) -> None:
    page = show(page_of(diff(searched("data"), searched("tensor"))))
    page.get_by_role("button", name="close all boxes").click()
    assert opened_nodes(page, 0) == opened_nodes(page, 1) == set()
    for side in (0, 1):
        page.locator(".graph").nth(side).locator('.box[aria-expanded="false"]').first.click()
        assert opened_nodes(page, 0) == opened_nodes(page, 1) != set()
        page.get_by_role("button", name="close all boxes").click()


def test_what_is_chosen_on_one_side_is_chosen_on_the_other(show: Show) -> None:
    page = show(page_of(diff(searched("data"), searched("tensor"))))
    for side in (0, 1):
        box = page.locator(".graph").nth(side).locator(".box.operator").first
        box.click()
        chosen = page.locator(".graph .chosen > .title")
        assert chosen.count() == 2
        assert chosen.nth(0).text_content() == chosen.nth(1).text_content()
        heads = page.locator(".details-row .panel h3")
        assert heads.nth(1).text_content() == heads.nth(2).text_content()


def test_a_change_is_shown_on_both_sides(show: Show) -> None:
    found = diff(searched("data"), searched("tensor"))
    page = show(page_of(found))
    page.locator(".change").first.click()
    picked = page.locator(".graph .operator.picked")
    assert picked.count() >= 2
    assert page.locator(".graph .chosen.operator").count() == 2
    assert page.locator('.change[aria-pressed="true"]').count() == 1


def test_graphs_move_and_zoom_together(show: Show) -> None:
    page = show(page_of(diff(searched("data"), searched("tensor"))))
    for _ in range(3):
        page.get_by_role("button", name="open the next level of boxes").click()
    for side in (0, 1):
        for down in (400, 900, -300):
            page.locator(".paper").nth(side).hover()
            page.mouse.wheel(0, down)
            page.wait_for_timeout(300)
            assert page.evaluate("(k) => document.querySelectorAll('.paper')[k].scrollTop", 1 - side) > 0
            assert page.evaluate(APART, side) < 40
    page.get_by_role("button", name="zoom in").click()
    widths = page.evaluate(
        "[...document.querySelectorAll('.graph')].map((g) => g.getAttribute('width') / g.viewBox.baseVal.width)"
    )
    assert widths[0] == pytest.approx(widths[1], rel=0.01)
    assert page.evaluate(APART, 1) < 40


def test_changes_are_filtered_by_what_is_written(show: Show) -> None:
    page = show(page_of(diff(searched("data"), searched("tensor"))))
    whole = page.locator(".change").count()
    page.get_by_role("searchbox").fill("matmul c_fc")
    assert 0 < page.locator(".change").count() < whole
    page.get_by_role("searchbox").fill("no such thing")
    assert page.locator(".change").count() == 0


@pytest.mark.parametrize(("a", "b"), [*PAIRS, ("data", "data")])
def test_what_differs_is_one_screen_and_nothing_is_clipped(show: Show, a: str, b: str) -> None:
    page = show(page_of(diff(searched(a), searched(b))), graphs=False)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 1440, "height": 900})
        assert page.evaluate("document.documentElement.scrollHeight") <= 900
        assert complaints(page) == []
        clipped = "[...document.querySelectorAll('.summary .scroll')].filter((e) => e.scrollWidth > e.clientWidth)"
        for width in (1440, 1200, 960, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(f"{clipped}.length") == 0, width
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert complaints(page) == []


def test_a_rule_leads_to_its_operators(show: Show) -> None:
    page = show(page_of(diff(searched("data"), searched("tensor"))), graphs=False)
    page.locator("button.rule").first.click()
    page.wait_for_selector("#changes[open] .graph .operator.picked")
    assert page.locator(".graph .operator.picked").count() >= 2
    assert page.locator(".details-row h3").first.is_visible()
    assert complaints(page) == []


def complaints(page: Any) -> list[str]:
    """What axe-core finds that is serious or worse; nothing where it is not installed."""
    try:
        from axe_playwright_python.sync_playwright import Axe
    except ImportError:
        return []
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['target']}" for v in found if v["impact"] in ("serious", "critical")]


def test_several_plans_are_one_screen(show: Show) -> None:
    names = ("micro-batches", "run again", "pipeline", "other batch", "data", "tensor", "recomputed")
    columns = [Column(searched(n), f"{n}/plan.json", f"the plan {n}, <b>in words</b> ⇒ {'long ' * 12}") for n in names]
    page = show(several_html(columns), graphs=False)
    assert page.locator("#plans tbody tr").count() == len(names)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 1440, "height": 900})
        assert page.evaluate("document.documentElement.scrollHeight") <= 900
        assert complaints(page) == []
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert complaints(page) == []
    page.locator("#causes > summary").click()
    steps = page.locator("#causes tbody tr").last.locator("td").all_inner_texts()[1:]
    assert len(steps) == len(names)
    for k, step in enumerate(steps):  # every column adds up as it is printed
        texts = [row.locator("td").nth(k + 1).inner_text() for row in page.locator("#causes tbody tr").all()[:-1]]
        assert sum(map(Decimal, texts)) == Decimal(step)


def test_long_names_and_warnings_leave_it_one_screen(show: Show) -> None:
    d = diff(searched("pipeline"), searched("other hardware"))
    assert d.warnings
    long = f"{'a-folder-of-some-depth/' * 6}plan.json"
    said = f"DP 4 {'with this and that, ' * 12}"
    page = show(page_of(d, (long, long), words=(said, said)), graphs=False)
    for height in (900, 760):
        page.set_viewport_size({"width": 1440, "height": height})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollHeight") <= height
    lists = "[...document.querySelectorAll('.summary .rules, #cause .scroll')]"
    assert page.evaluate(f"{lists}.some((e) => e.scrollHeight > e.clientHeight)"), "lists scroll by themselves"
    assert page.evaluate(f"{lists}.every((e) => e.clientHeight >= 90)")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.evaluate(f"{lists}.every((e) => !e.style.maxHeight)")
