"""The page of a plan in a real browser: no error, nothing refused by its policy, quick, and what it shows is right.

Runs where playwright and a Chromium are there (`PLANNER_CHROMIUM`, or one on the path).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from planner.planning import PlanDocument
from planner.report import report_html
from planner.report.mesh import shards
from planner.report.record import MomentDocument, PointDocument, SearchRecord
from tests.unit.report_plans import deepened, hostile, old, plan_of, without_modules

pytestmark = pytest.mark.slow
Open = Callable[..., Any]


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a plan's page; at the end nothing may have been logged, refused or asked of the network."""
    said: list[str] = []
    pages: list[Any] = []

    def show(plan: PlanDocument, record: SearchRecord | None = None, **options: Any) -> Any:
        file = tmp_path / "report.html"
        file.write_text(report_html(plan, record), encoding="utf-8")
        page = browser.new_page(viewport={"width": 1400, "height": 900}, **options)
        page.on("console", lambda m: said.append(m.text))
        page.on("pageerror", lambda e: said.append(str(e)))
        page.on("dialog", lambda d: said.append(f"dialog {d.message}"))
        page.on("request", lambda r: None if r.url.startswith("file:") else said.append(r.url))
        page.goto(file.as_uri())
        page.wait_for_selector("body[data-ready]", timeout=20_000)
        pages.append(page)
        return page

    yield show
    for page in pages:
        page.close()
    assert said == []


def made(kind: str) -> PlanDocument:
    edits = {"hostile": hostile, "old": old, "without modules": without_modules}
    return edits[kind](plan_of("megatron")) if kind in edits else plan_of(kind)


def opened(page: Any) -> None:
    for _ in range(12):
        before = page.locator(".box").count()
        page.get_by_role("button", name="open the next level of boxes").click()
        if page.locator(".box").count() == before:
            return


KINDS = ["megatron", "recomputed", "pipeline", "experts", "images", "hostile", "old", "without modules"]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_opens_and_nothing_overlaps(kind: str, shown: Open) -> None:
    plan = made(kind)
    page = shown(plan)
    opened(page)
    assert page.locator(".box.operator").count() == len(plan.operators)
    # Boxes that share a parent: their rectangles are apart.
    overlaps = page.evaluate(
        """() => {
          const boxes = [...document.querySelectorAll('.box, .pill')].map((g) => {
            const f = [...g.querySelectorAll(':scope > .frame:not(.under)')].pop();
            const t = g.transform.baseVal.getItem(0).matrix;
            const size = { w: +f.getAttribute('width'), h: +f.getAttribute('height') };
            return { x: t.e, y: t.f, ...size, name: g.getAttribute('aria-label') };
          });
          const found = [];
          const within = (a, b) => a.x >= b.x - 0.5 && a.x + a.w <= b.x + b.w + 0.5;
          const inside = (a, b) => within(a, b) && a.y >= b.y - 0.5 && a.y + a.h <= b.y + b.h + 0.5;
          for (let i = 0; i < boxes.length; i++) for (let k = i + 1; k < boxes.length; k++) {
            const a = boxes[i], b = boxes[k];
            const beside = a.x + a.w <= b.x + 0.5 || b.x + b.w <= a.x + 0.5;
            const apart = beside || a.y + a.h <= b.y + 0.5 || b.y + b.h <= a.y + 0.5;
            if (!apart && !inside(a, b) && !inside(b, a)) found.push([a.name, b.name]);
          }
          return found;
        }"""
    )
    assert overlaps == []


def test_every_text_of_a_box_is_within_it(shown: Open) -> None:
    page = shown(made("megatron"))
    opened(page)
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.box, .pill')].flatMap((g) => {
          const f = [...g.querySelectorAll(':scope > .frame:not(.under)')].pop().getBoundingClientRect();
          return [...g.querySelectorAll(':scope > text')].filter((t) => {
            const r = t.getBoundingClientRect();
            const beside = r.left < f.left - 1 || r.right > f.right + 1;
            return r.width && (beside || r.top < f.top - 2 || r.bottom > f.bottom + 2);
          }).map((t) => t.textContent);
        })"""
    )
    assert outside == []


def test_the_totals_shown_are_those_of_the_plan(shown: Open) -> None:
    plan = made("megatron")
    tiles = shown(plan).locator(".tile .exact").all_inner_texts()
    cost = plan.cost
    assert [float(tiles[k].removesuffix(" s")) for k in (0, 1, 4)] == [
        cost.step_time_s,
        cost.step_time_lower_bound_s,
        cost.objective_s,
    ]
    assert float(tiles[2]) == cost.gap
    assert int(tiles[3].removesuffix(" bytes").replace(",", "")) == cost.peak_memory_bytes


def test_search_reveals_an_operator_and_its_parameter_lies_on_the_ranks_as_planned(shown: Open) -> None:
    plan = made("megatron").model_copy(deep=True)
    stored = plan.parameters["transformer.h.1.mlp.c_proj.weight"].stored
    stored.dims = [["y", "x"], []]  # the order of axes within a dimension counts
    page = shown(plan)
    page.get_by_role("combobox", name="find an operator").fill("transformer.h.1.mlp.c_proj.matmul")
    page.keyboard.press("Enter")
    assert "transformer.h.1.mlp.c_proj.matmul" in page.locator(".panel header").inner_text()
    assert page.locator(".box.chosen").count() == 1
    page.locator(".panel td").get_by_role("button", name="transformer.h.1.mlp.c_proj.weight").click()
    parameter = plan.parameters["transformer.h.1.mlp.c_proj.weight"]
    expected = {
        rank: ", ".join(f"{a}:{b}" for a, b in shard.ranges)
        for shard in shards(parameter.stored.layout(), parameter.shape, plan.mesh)
        for rank in shard.ranks
    }
    labels = page.locator(".panel .rank").evaluate_all("(all) => all.map((c) => c.getAttribute('aria-label'))")
    assert [label.partition(" holds ")[2] for label in labels] == [f"[{expected[r]}]" for r in range(plan.devices)]


def test_a_tensor_on_very_many_ranks_is_drawn_in_part(shown: Open) -> None:
    plan = made("megatron").model_copy(deep=True)
    name, t = next((n, t) for n, t in plan.tensors.items() if n not in plan.parameters and t.shape)
    plan.meshes["m0"].axes[0].size = 1 << 19
    t.layout.dims = [[] for _ in t.shape or ()]
    t.gradient = None
    page = shown(plan)
    page.get_by_role("combobox", name="find an operator").fill(name)
    page.keyboard.press("Enter")
    page.locator(".panel td").get_by_role("button", name=name, exact=True).first.click()
    assert page.locator(".panel .rank").count() == 4096
    assert "1,048,576 ranks" in page.locator(".panel").inner_text()


def test_keys_open_boxes_and_move_between_them(shown: Open) -> None:
    page = shown(made("megatron"))
    page.locator(".box.module:not(.open)").first.focus()
    before = page.locator(".box").count()
    page.keyboard.press("Enter")
    assert page.locator(".box").count() > before
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert name.startswith("module")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") != name


def test_the_graph_opens_whole(shown: Open) -> None:
    for kind in ("megatron", "images"):
        page = shown(made(kind))
        beyond = page.evaluate(
            "(() => { const p = document.querySelector('.paper');"
            " return [p.scrollWidth - p.clientWidth, p.scrollHeight - p.clientHeight]; })()"
        )
        assert beyond == [0, 0]
        assert "…" not in "".join(page.locator(".graph text").all_text_contents())


def test_an_address_opens_an_operator_and_what_is_chosen_has_one(shown: Open) -> None:
    page = shown(made("megatron"))
    page.evaluate("location.hash = '#op=' + encodeURIComponent('transformer.h.1.mlp.c_proj.matmul')")
    page.wait_for_selector(".box.operator.chosen")
    assert "transformer.h.1.mlp.c_proj.matmul" in page.locator(".panel header").inner_text()
    page.locator(".box.operator", has_text="SoftmaxCrossEntropyLoss").first.click()
    chosen = page.locator(".panel header p.quiet").inner_text()
    assert page.evaluate("decodeURIComponent(location.hash)") == f"#op={chosen}"
    assert page.get_by_role("link", name="link to this operator").get_attribute("href").startswith("#op=")
    page.evaluate("location.hash = '#op=%zz'")
    page.evaluate("location.hash = '#op=no-such-operator'")


def test_colours_show_time_and_memory(shown: Open) -> None:
    page = shown(made("megatron"))
    page.get_by_role("combobox", name="colour by", exact=True).select_option("time")
    assert page.locator(".box.heat").count() > 3
    assert page.locator(".box .swatch").count() == 0
    page.get_by_role("combobox", name="colour by", exact=True).select_option("memory")
    assert "iB" in page.locator(".box.operator", has_text="MatMul").first.text_content()
    page.get_by_role("combobox", name="colour by", exact=True).select_option("split")
    assert page.locator(".box .swatch").count() > 3


def test_a_rank_of_the_cluster_says_where_it_is_and_what_it_sends(shown: Open) -> None:
    plan = made("pipeline").model_copy(deep=True)
    plan.cluster.devices_per_server = 2
    page = shown(plan)
    assert page.locator("#cluster .server").count() == 2
    page.locator("#cluster .rank").nth(3).click()
    said = page.locator("#cluster .rank-said").inner_text()
    assert "Rank 3" in said
    assert "1, device 1 of it" in said
    assert "1 of 2" in said
    assert page.locator("#cluster td", has_text="to another stage").count() >= 2


def test_memory_over_the_step_is_read_at_a_point(shown: Open) -> None:
    page = shown(made("data"))
    picture = page.locator("#held canvas")
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    assert page.locator("#held .held-tip").inner_text().startswith("After ")
    assert "activations" in page.locator("#held .held-tip").inner_text()


@pytest.mark.parametrize("kind", ["SVG", "PNG"])
def test_the_graph_is_saved_as_a_picture(kind: str, shown: Open) -> None:
    page = shown(made("hostile"))
    with page.expect_download() as download:
        page.get_by_role("button", name=f"as {kind}").click()
    data = Path(download.value.path()).read_bytes()
    if kind == "PNG":
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        assert len(data) > 10_000
        return
    root = ElementTree.fromstring(data)
    texts = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("MatMul" in t for t in texts)
    assert b"var(" not in data
    assert b"<script" not in data


def test_the_wheel_zooms_a_graph_that_was_clicked_and_scrolls_the_page_else(shown: Open) -> None:
    page = shown(made("megatron"))
    page.locator("#graph").scroll_into_view_if_needed()
    width = "+document.querySelector('svg.graph').getAttribute('width')"
    before = page.evaluate(width)
    page.locator(".paper").hover()
    page.mouse.wheel(0, -200)
    page.wait_for_timeout(200)
    assert page.evaluate(width) == before
    page.locator(".paper").click(position={"x": 5, "y": 5})
    page.locator(".paper").hover()
    page.mouse.wheel(0, -200)
    page.wait_for_function(f"{width} > {before}")
    assert page.locator(".map").is_visible()


def test_the_graph_fills_the_screen_and_comes_back(shown: Open) -> None:
    page = shown(made("megatron"))
    page.get_by_role("button", name="show the graph on the whole screen").click()
    page.wait_for_selector("section.full")
    assert page.locator(".paper").bounding_box()["height"] > 600
    page.get_by_role("button", name="show the graph on the whole screen").click()
    page.wait_for_selector("section#graph:not(.full)")


def test_a_redistribution_tells_its_steps(shown: Open) -> None:
    page = shown(made("megatron"))
    opened(page)
    page.locator(".pill").first.click()
    assert page.locator(".panel .move li").count() >= 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_narrow_pages_do_not_scroll_sideways(scheme: str, shown: Open) -> None:
    page = shown(made("hostile"), color_scheme=scheme)
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


# The share of a canvas that something is drawn on.
INK = """(canvas) => {
  const { width, height } = canvas, data = canvas.getContext("2d").getImageData(0, 0, width, height).data;
  let drawn = 0;
  for (let at = 3; at < data.length; at += 4) drawn += data[at] > 0;
  return drawn / width / height;
}"""


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_how_the_search_went_and_what_it_found_are_drawn(width: int, scheme: str, shown: Open) -> None:
    plan = made("data")
    step, held = plan.cost.step_time_s, plan.cost.peak_memory_bytes
    moments = [MomentDocument(seconds=s, best_s=f * step, bound_s=b) for s, f, b in ((1, 3, None), (2, 1, 0.9 * step))]
    points = [
        PointDocument(kind=kind, parallelism=f"DP {k} <b>", step_time_s=k * step, peak_memory_bytes=held // k)
        for k, kind in ((1, "plan"), (2, "front"), (40, "front"))
    ]
    points.append(PointDocument(kind="met", parallelism="TP 2", step_time_s=9 * step, peak_memory_bytes=held))
    record = SearchRecord(
        schema="planner.history/1", plans=[], seconds=4.0, steps=moments, objectives=moments, points=points
    )
    page = shown(plan, record, color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    for name, count in (("#history", 2), ("#front", 1)):
        page.locator(name).scroll_into_view_if_needed()
        page.wait_for_timeout(200)
        drawn = [c.evaluate(INK) for c in page.locator(f"{name} canvas").all()]
        assert len(drawn) == count
        assert all(0.01 < share < 0.9 for share in drawn)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    said = [page.locator(f"{name} canvas").first.get_attribute("aria-label") for name in ("#history", "#front")]
    assert said[0].startswith("step over the time of the search")
    assert "4 plans and configurations" in said[1]
    box = page.locator("#front canvas").bounding_box()
    page.mouse.move(box["x"] + 60, box["y"] + 20)
    assert page.locator("#front .chart-tip").inner_text().startswith("DP 40 <b>: ")
    assert "history" not in page.locator("nav").inner_text()
    assert "The search over time" in page.locator("nav").inner_text()


def test_a_search_that_found_its_plan_at_once_is_told_in_words(shown: Open) -> None:
    plan = made("data")
    once = [MomentDocument(seconds=1, best_s=plan.cost.step_time_s)]
    page = shown(plan, SearchRecord(schema="planner.history/1", plans=[], seconds=2.0, steps=once))
    assert "The first plan that was found is the answer." in page.locator("#history").text_content()
    assert page.locator("#history canvas").count() == page.locator("#front").count() == 0


def test_a_plan_of_ten_thousand_operators_is_there_in_two_seconds(shown: Open) -> None:
    """Of the processor: how many others use it is not the page's doing."""
    plan = deepened(plan_of("megatron"), 400)
    assert len(report_html(plan)) < 5_000_000
    page = shown(plan)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        return float({m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}["TaskDuration"])

    before = spent()
    page.reload()
    page.wait_for_selector("body[data-ready]", timeout=60_000)
    taken = spent() - before
    assert 0.01 < taken < 2
