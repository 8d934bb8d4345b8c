"""The pages of the site, before Sphinx reads them: all links lead to pages, and the index leads to all pages.

`.ci/run` builds the site, where any warning is an error.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
OF_SPHINX = {"search.md", "genindex.md"}  # pages of these names would be overwritten without a word


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_build", ROOT / "docs" / "site" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    build.write_sources(folder)
    return folder


def test_every_document_is_a_page(pages: Path) -> None:
    names = {p.relative_to(pages).as_posix() for p in pages.rglob("*.md")}
    documents = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    documents = {d for d in documents if d.partition("/")[0] not in ("site", "deploy")}
    assert documents - {"README.md", "search.md"} <= names
    assert {"index.md", "plan-search.md", "about.md", "changelog.md", "notebook.md"} <= names
    assert not names & OF_SPHINX


def test_links_between_pages_lead_somewhere(build: ModuleType, pages: Path) -> None:
    lost = []
    for page in pages.rglob("*.md"):
        for _, link, _ in build.LINK.findall(page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                lost.append(f"{page.name}: {link}")
    assert not lost


def test_the_navigation_names_every_page_once(pages: Path) -> None:
    trees = re.findall(r"```\{toctree\}\n:hidden:\n:caption: .+\n\n([^`]*)```", (pages / "index.md").read_text())
    named = " ".join(trees).split()
    all_pages = {p.relative_to(pages).with_suffix("").as_posix() for p in pages.rglob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == {p for p in all_pages if not p.startswith("files/")} - {"index"}


def test_a_file_that_is_no_page_is_copied(build: ModuleType, tmp_path: Path) -> None:
    build.placed(ROOT / "LICENSE", tmp_path)
    assert (tmp_path / "files" / "LICENSE").is_file()
    assert build.placed(ROOT / "docs" / "search.md", tmp_path) == Path("plan-search.md")


def test_every_diagram_has_its_picture_and_every_picture_a_diagram(build: ModuleType, pages: Path) -> None:
    """docs/site/diagrams.py draws them; the site loads no script that would."""
    wanted = {
        build.picture_of(found["source"])
        for file in build.DOCS.rglob("*.md")
        for found in build.FENCE.finditer(file.read_text(encoding="utf-8"))
    }
    assert wanted == set(build.DIAGRAMS.glob("*.svg"))
    assert wanted
    for picture in wanted:
        text = picture.read_text(encoding="utf-8")
        assert "<script" not in text
        assert not re.search(r"""(?:href|src)=["']?https?:|url\(https?:|@import""", text)
    assert not any("```mermaid" in page.read_text(encoding="utf-8") for page in pages.rglob("*.md"))


def test_a_diagram_without_its_picture_is_refused(build: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"'flowchart LR' has no picture .*diagrams\.py"):
        build.diagram("flowchart LR\n  nowhere --> elsewhere\n", Path("page.md"))
