"""The page's files are served, under a policy that lets nothing else in."""

from __future__ import annotations

import re
from pathlib import Path

from tests.service.http import Service

STATIC = Path(__file__).parents[2] / "api" / "static"


def test_every_file_of_the_page_is_served_with_its_type_and_a_strict_policy(service: Service):
    for path in (p for p in STATIC.rglob("*") if p.is_file()):
        name = path.relative_to(STATIC).as_posix()
        answer = service.client.get(f"/static/{name}")
        assert answer.status_code == 200, name
        assert answer.content == path.read_bytes()
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert "unsafe" not in " ".join(policy.values())
    assert service.client.get("/").content == (STATIC / "index.html").read_bytes()


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
    offered = set(re.findall(r'\sname="([a-z_]+)"', (STATIC / "index.html").read_text())) - {"viewport"}
    assert offered - {"color"} <= taken
    assert taken - offered <= {"name", "reproducible", "top_k"}
