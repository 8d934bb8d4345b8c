"""Documents name only what is there, and the index names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *(p for g in ("*.md", "tutorials/*.md") for p in sorted((ROOT / "docs").glob(g)))]
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
    docs = ROOT / "docs"
    assert {str(p.relative_to(docs)) for p in DOCUMENTS if p.is_relative_to(docs)} - {"README.md"} <= named


def test_the_readme_is_read_in_a_few_minutes() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
