"""The page of two plans: boxes that correspond, nothing of a model as markup, and what it may load."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main
from planner.planning import PlanDocument, plan_text
from planner.report import diff_document, diff_html
from planner.report.diff import diff, document, page_of
from planner.report.diff.page import views
from planner.report.diff.summary import summary
from planner.report.diff.verdict import other_work
from planner.report.html import SCRIPT_HASHES, STYLE_HASHES
from planner.report.view import View
from tests.unit.diff_plans import HOSTILE, PAIRS, edited, hostile, searched


def data_of(page: str) -> dict[str, Any]:
    """What the page's script reads."""
    packed = re.search(r'id="data">"([^"]*)"</script>', page)
    assert packed is not None
    return json.loads(zlib.decompress(base64.b64decode(packed[1])))


class Elements(HTMLParser):
    """Elements with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def below(data: dict[str, Any], side: str) -> list[set[str]]:
    """Names of the operators below every node."""
    names = [o[0] for o in data[side]["operators"]]
    out = [{n} for n in names] + [set() for _ in data[side]["nodes"]]
    inputs = {len(names) + k for k, n in enumerate(data[side]["nodes"]) if n[0] == "input"}
    for k, node in enumerate(data[side]["nodes"]):
        for child in node[4]:
            if child not in inputs:
                out[len(names) + k] |= out[child]
    return out


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_boxes_that_open_together_hold_corresponding_operators(a: str, b: str) -> None:
    d = diff(searched(a), searched(b))
    data = data_of(page_of(d))
    partner = dict(d.matching.pairs)
    here, there = below(data, "a"), below(data, "b")
    root = data["a"]["root"]
    linked = [(i, j) for i, j in enumerate(data["partner"]) if j >= 0 and i != root]
    assert len({j for _, j in linked}) == len(linked)
    for i, j in linked:
        assert {partner.get(n) for n in here[i]} == there[j]
    if not d.matching.only_a and not d.matching.only_b and a != "pipeline":
        assert all(j >= 0 for j in data["partner"])
        assert len(data["partner"]) == len(there)


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_page_says_what_the_document_says(a: str, b: str) -> None:
    d = diff(searched(a), searched(b))
    told = data_of(page_of(d))["diff"]
    own = json.loads(json.dumps(document(d)))
    assert {k: told[k] for k in own if k != "settings"} == {k: v for k, v in own.items() if k != "settings"}
    others = [r for r in own["settings"] if r["what"] != "pin"]
    assert told["settings"][: len(others)] == others
    assert told["other_work"] == other_work(d, summary(d))
    # Pins are counted: a configuration has one for every operator.
    assert [r["what"] for r in told["settings"][len(others) :]] == ["pins"] * (len(others) < len(own["settings"]))


def test_a_page_loads_and_runs_nothing_but_its_own_script_and_style() -> None:
    page = page_of(diff(searched("data"), searched("tensor")))
    found = Elements(page).found
    policy = next(a["content"] or "" for t, a in found if t == "meta" and a.get("http-equiv"))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for kind, blocks, hashes in (("script", scripts, [SCRIPT_HASHES["diff"]]), ("style", styles, list(STYLE_HASHES))):
        told = ["sha256-" + base64.b64encode(hashlib.sha256(x.encode()).digest()).decode() for x in blocks]
        assert told == hashes
        assert f"{kind}-src '{told[0]}'" in policy
    assert "default-src 'none'" in policy
    assert not [a for _, a in found if any(k.startswith("on") or k in ("style", "src", "href") for k in a)]
    assert len(page) < 5_000_000


def test_no_name_of_a_model_becomes_markup() -> None:
    plain = page_of(diff(searched("data"), searched("tensor")))
    odd: tuple[PlanDocument, ...] = tuple(edited(searched(n), hostile) for n in ("data", "tensor"))
    page = page_of(diff(*odd), (HOSTILE[1], HOSTILE[3]))
    assert [t for t, _ in Elements(page).found] == [t for t, _ in Elements(plain).found]
    assert "<img" not in page
    assert data_of(page)["a"]["report"]["model"]["name"] == odd[0].model.name


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("data", "tensor"):
        (tmp_path / f"{name}.json").write_text(plan_text(searched(name)), encoding="utf-8")
    files = [str(tmp_path / "data.json"), str(tmp_path / "tensor.json")]
    assert main(["diff", *files, "--out", str(tmp_path / "diff.html")]) == 1
    page = (tmp_path / "diff.html").read_text(encoding="utf-8")
    assert data_of(page)["diff"]["names"] == {"a": files[0], "b": files[1]}
    (tmp_path / "file").write_text("")
    capsys.readouterr()
    assert main(["diff", *files, "--out", str(tmp_path / "file" / "diff.html")]) == 3
    assert "cannot be written" in capsys.readouterr().err


def test_services_ask_for_pages_and_documents_of_plans() -> None:
    a, b = searched("data"), searched("tensor")
    assert data_of(diff_html(a, b))["diff"]["schema"] == diff_document(a, b)["schema"] == "planner.diff/1"


def test_blocks_stand_together_only_where_both_plans_leave_them_alike() -> None:
    """One edited operator in one block of B parts that block from the others in A's picture as well."""
    a = searched("data")
    name = a.model.repeated[0][1][5]

    def change(data: dict[str, Any]) -> None:
        op = data["operators"][name]
        op["strategy"] = dict.fromkeys(op["strategy"], "defer")

    def piles(v: View) -> list[int]:
        return [n.alike for n in v.tree.nodes if n.kind == "pile"]

    same, other = views(diff(a, a)), views(diff(a, edited(a, change)))
    assert piles(same[0]) == piles(same[1])
    assert piles(other[0]) == piles(other[1])
    assert sum(piles(other[0])) < sum(piles(same[0]))
