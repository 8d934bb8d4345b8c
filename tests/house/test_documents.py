"""Documents name only what is there, and the index names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *PAGES, *TUTORIALS]
# Words of ours for what the field has words for, or that are none of the field's.
PRIVATE = re.compile(
    r"\b(tally|tallies|lean(er|est)? (plan|step|search)|(is|are|was|were|unless) told|bury|buries)\b", re.IGNORECASE
)
CODE = re.compile(r"^```.*?^```|^(?: {4}|\t).*$|`[^`]*`", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def anchors(document: Path) -> set[str]:
    """Names under which headings of a document are linked to, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", document.read_text(encoding="utf-8"), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(document: Path) -> None:
    lost = []
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue  # another site: nothing here looks it up
        file = (document.parent / target).resolve() if target else document
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(f"{target}#{anchor}" if anchor else target)
    assert not lost, f"{document.name} links to what is not there: {', '.join(lost)}"


def test_the_index_names_every_document() -> None:
    named = {target for target, _ in LINK.findall((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))}
    documents = {p.relative_to(ROOT / "docs").as_posix() for p in (*PAGES, *TUTORIALS)}
    assert documents - {"README.md"} <= named


@pytest.mark.parametrize("document", PAGES, ids=lambda p: p.name)
def test_a_page_begins_with_what_it_is_for_and_for_whom(document: Path) -> None:
    """In one paragraph of whole sentences below the title, before any code, table or list."""
    title, first, *_ = document.read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert "\n" not in title
    assert re.match(r"This page (is|lists|says|explains|describes|defines|shows|compares)\b", first), first
    assert re.search(r"\bfor\b", first), f"{document.name} does not say for whom it is"
    assert first.endswith((".", ":")), first
    assert len(first.split()) <= 90, "what a page is for is said in a few sentences"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.name)
def test_pages_have_no_words_of_ours(document: Path) -> None:
    text = CODE.sub("", document.read_text(encoding="utf-8"))
    assert not [found[0] for found in PRIVATE.finditer(text)]


def test_terms_of_the_output_are_in_the_glossary() -> None:
    """Those that the summary of `planner search` and the README use."""
    glossary = (ROOT / "docs" / "README.md").read_text(encoding="utf-8").partition("## Glossary")[2]
    for term in (
        "DP",
        "TP",
        "PP",
        "CP",
        "EP",
        "ZeRO",
        "micro-batch",
        "bubble",
        "mesh",
        "layout",
        "redistribution",
        "MFU",
    ):
        assert re.search(rf"^\| [^|]*\b{term}\b", glossary, re.M), term
    assert "glossary" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
