"""The documents as a site: `python docs/site/build.py OUT` (extra `docs`).  Any warning is an error.

Sphinx reads CommonMark through MyST, the dialect in which forges show the same files; Python-Markdown, which MkDocs
uses, reads lists and fences in them differently.  The site loads nothing from the network, neither while it is built
nor in a browser, and works from a folder.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
DOCS: Final = ROOT / "docs"
# The page that a site begins with, and names that Sphinx has for pages of its own.
RENAMED: Final = {"README.md": "index.md", "search.md": "plan-search.md", "genindex.md": "general-index.md"}
# Pages that other files of the repository become, and under which name.
BEYOND: Final = {"README.md": "about.md", "CHANGELOG.md": "changelog.md"}
LINK: Final = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
SECTION: Final = re.compile(r"^## (.+)$", re.M)
TUTORIAL: Final = re.compile(r"\]\((tutorials/[^)\s#]+\.md)\)")
FENCE: Final = re.compile(r"^```mermaid\n(?P<source>.*?)^```$", re.M | re.S)
DIAGRAMS: Final = DOCS / "images" / "diagrams"


def write_sources(to: Path) -> None:
    """The pages that Sphinx reads: all documents, the README, the changelog and the notebook."""
    for file in sorted(DOCS.rglob("*")):
        place = file.relative_to(DOCS)
        if not file.is_file() or place.parts[0] in ("site", "deploy"):
            continue
        new = to / page_of(place)
        new.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":
            text = linked(file, page_of(place), to)
            new.write_text(text + (contents(text) if place == Path("README.md") else ""), encoding="utf-8")
        elif file.suffix == ".ipynb":
            new.write_text(notebook(file), encoding="utf-8")
        else:
            shutil.copyfile(file, new)
    for name, page in BEYOND.items():
        (to / page).write_text(linked(ROOT / name, Path(page), to), encoding="utf-8")


def page_of(place: Path) -> Path:
    """Where a file of docs/ lies among the pages."""
    if place.as_posix() in RENAMED:
        return Path(RENAMED[place.as_posix()])
    return place.with_suffix(".md") if place.suffix == ".ipynb" else place


def linked(file: Path, page: Path, to: Path) -> str:
    """A document with its links as they are between pages.  What is linked to and is no page is copied to `files/`."""

    def target(found: re.Match[str]) -> str:
        before, link, after = found.groups()
        path = (file.parent / link).resolve()
        if re.match(r"[a-z]+:", link) or not path.exists():
            return found[0]  # what is not there is Sphinx's to refuse
        return f"{before}{up}{placed(path, to).as_posix()}{after}"

    up = "../" * len(page.parent.parts)
    text = LINK.sub(target, file.read_text(encoding="utf-8"))
    return FENCE.sub(lambda found: diagram(found["source"], file), text)


def picture_of(source: str) -> Path:
    """Where the picture of a diagram lies, which diagrams.py draws."""
    return DIAGRAMS / f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def diagram(source: str, file: Path) -> str:
    """The picture of a diagram, as wide as it is drawn, with its source for those who do not see it."""
    path = picture_of(source)
    if not path.is_file():
        raise SystemExit(
            f"{file}: its diagram {source.splitlines()[0]!r} has no picture {path}: draw it with docs/site/diagrams.py"
        )
    svg = path.read_text(encoding="utf-8").strip().replace("<svg ", '<svg aria-label="diagram; its source follows" ', 1)
    words = f"<details><summary>Source of the diagram</summary><pre>{escape(source)}</pre></details>"
    return f'```{{raw}} html\n<div style="overflow-x: auto" tabindex="0">{svg}</div>\n{words}\n```'


def placed(path: Path, to: Path) -> Path:
    """Where a file that is linked to lies among the pages."""
    if path.is_relative_to(DOCS) and path.relative_to(DOCS).parts[0] not in ("site", "deploy"):
        return page_of(path.relative_to(DOCS))
    place = path.relative_to(ROOT)
    if place.as_posix() in BEYOND:
        return Path(BEYOND[place.as_posix()])
    copy = Path("files") / place
    if not (to / copy).exists():
        (to / copy.parent).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to / copy)
        if path.suffix == ".md":
            (to / copy).write_text(f"---\norphan: true\n---\n{linked(path, copy, to)}", encoding="utf-8")
    return copy


def contents(index: str) -> str:
    """The tables of the index as the site's navigation: its sections, and in each the pages in their order.  Tutorials
    are a section of their own, behind the first."""
    parts = SECTION.split(index)
    blocks, named = [], set(TUTORIAL.findall(index))
    tutorials = sorted(p.relative_to(DOCS).with_suffix("").as_posix() for p in (DOCS / "tutorials").glob("*.md"))
    for title, section in zip(parts[1::2], parts[2::2], strict=True):
        rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
        pages = [link for _, link, _ in LINK.findall(rows) if link.endswith(".md") and link not in named]
        named.update(pages)
        if pages:
            names = "\n".join(p.removesuffix(".md") for p in dict.fromkeys(pages))
            blocks.append(_tree(title, names))
    if tutorials:
        blocks.insert(1, _tree("Tutorials", "\n".join(tutorials)))
    return "\n" + "\n\n".join([*blocks, _tree("Changes", "changelog")]) + "\n"


def _tree(title: str, pages: str) -> str:
    return f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n{pages}\n```"


def notebook(file: Path) -> str:
    """The cells of a notebook as Markdown."""
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    texts = [("".join(c["source"]), c["cell_type"]) for c in cells]
    return "\n\n".join(f"```python\n{text}\n```" if kind == "code" else text for text, kind in texts) + "\n"


def build(out: Path) -> int:
    """Writes the site to `out`; the exit status of Sphinx, which is 1 where anything is to be warned of."""
    with tempfile.TemporaryDirectory() as folder:
        pages = Path(folder)
        write_sources(pages)
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-c", HERE, pages, out]
        return subprocess.run([str(word) for word in command], check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder that the site is written to")
    raise SystemExit(build(parser.parse_args().out.resolve()))
