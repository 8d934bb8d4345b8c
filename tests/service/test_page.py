"""The page's files are served, under a policy that lets nothing else in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from planner.api.documentation import documentation
from planner.api.form import with_fields
from planner.api.options import PlanQuery, plan_query
from planner.requests.options import option
from planner.requests.search import SearchRequest
from planner.search.solver import SOLVERS
from tests.service.http import Service

STATIC = Path(__file__).parents[2] / "api" / "static"
TAGS = {
    *("html", "head", "meta", "title", "link", "body", "main", "section", "div", "h1", "h2", "h3", "p", "a", "br"),
    *("code", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"),
}
PAGE = (STATIC / "index.html").read_text()


@dataclass
class More(SearchRequest):
    colour: str | None = option(choices=("red", "<b>"), help="which colour")
    fine_grain: bool = option(False, action="store_true")
    hints: list[str] = option([], action="append")


def test_every_file_of_the_page_is_served_with_its_type_and_a_strict_policy(service: Service):
    for path in (p for p in STATIC.rglob("*") if p.is_file()):
        name = path.relative_to(STATIC).as_posix()
        answer = service.client.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert answer.content == path.read_bytes() or path.suffix == ".html"  # which has fields filled in
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert "unsafe" not in " ".join(policy.values())
    assert service.client.get("/").content == service.client.get("/static/index.html").content


def test_the_page_holds_no_inline_scripts_styles_or_foreign_addresses():
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*src=)", page)
    for path in STATIC.glob("*.*"):
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, path.name
        assert "innerHTML" not in text, path.name


def test_what_the_page_names_is_there(service: Service):
    page = (STATIC / "index.html").read_text()
    names = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    names += [f"/static/samples/{name}.onnx" for name in re.findall(r'data-sample="([^"]+)"', page)]
    for path in STATIC.glob("*.js"):
        names += [f"/static/{name}" for name in re.findall(r'from "\./([^"]+)"', path.read_text())]
    assert len(names) > 10
    assert {n: service.client.get(n).status_code for n in names} == dict.fromkeys(names, 200)


def test_the_form_offers_what_a_request_takes(service: Service):
    document = service.client.get("/openapi.json").json()
    taken = {p["name"] for p in document["paths"]["/v1/plans"]["post"]["parameters"] if p["in"] == "query"}
    page = service.client.get("/").text
    offered = re.findall(r'\s(?:id|for)="[a-z_]+" name="([a-z_]+)"', page)
    assert sorted(offered) == sorted(taken - {"name", "reproducible", "top_k", "webhook"})
    assert all(f'<label for="{name}">' in page for name in offered)


def test_an_option_more_is_a_field_more():
    more = with_fields(PAGE, plan_query(More))
    usual = with_fields(PAGE)
    fresh = [line.strip() for line in more.splitlines() if line not in usual.splitlines()]
    assert fresh == [
        '<div class="field"><label for="colour">Colour</label><select id="colour" name="colour" title="Which colour.">'
        '<option value="">by the planner</option><option value="red">red</option>'
        '<option value="&lt;b&gt;">&lt;b&gt;</option></select></div>',
        '<div class="field"><label for="fine_grain">Fine grain</label><input id="fine_grain" name="fine_grain" '
        'type="checkbox" value="true"></div>',
        '<div class="field wide"><label for="hints">Hints</label><textarea id="hints" name="hints" rows="2" '
        'spellcheck="false"></textarea></div>',
    ]


def test_a_form_begins_with_what_is_asked_for_where_nothing_is_said():
    page = with_fields(PAGE)
    for name, field in PlanQuery.model_fields.items():
        chosen = re.search(rf'<select id="{name}"[^>]*><option value="([^"]*)"', page)
        assert chosen is None or chosen[1] == (field.default or "")
    assert re.search(r'<select id="solver".*?</select>', page)[0].count("<option") == len(SOLVERS)


def test_the_interface_is_shown_to_people_by_the_services_own_files(service: Service) -> None:
    answer = service.client.get("/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "unsafe" not in answer.headers["content-security-policy"]
    page = answer.text
    assert "<script" not in page
    assert "style=" not in page
    assert not re.findall(r'(?:src|href)="(?!/|#)[^"]*"', page)
    for path in re.findall(r'(?:src|href)="(/[^"]*)"', page):
        assert service.client.get(path).status_code == 200, path
    anchors = set(re.findall(r'id="([^"]+)"', page))
    assert set(re.findall(r'href="#([^"]+)"', page)) <= anchors
    document = service.client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert f"{method.upper()} {path}" in page
            assert operation["operationId"] in anchors
            assert all(p["name"] in page for p in operation.get("parameters", ()))
    assert {f"schema-{name}" for name in document["components"]["schemas"]} <= anchors
    assert set(re.findall(r"</?([a-z0-9]+)", page)) <= TAGS


def test_words_of_the_document_become_no_markup() -> None:
    answers = {"200": {"description": "<u>"}}
    operation = {"operationId": "x", "summary": "<b>`<i>`", "tags": ["<t>"], "responses": answers}
    info = {"title": "<a>", "version": "<v>", "description": "<d>"}
    schemas = {"<s>": {"description": "<e>", "properties": {"<m>": {"enum": ["<n>"]}}}}
    page = documentation({"info": info, "paths": {"/<p>": {"get": operation}}, "components": {"schemas": schemas}})
    assert not re.findall(r"<[bituvdsemn]>", page)
    assert "&lt;b&gt;<code>&lt;i&gt;</code>" in page
