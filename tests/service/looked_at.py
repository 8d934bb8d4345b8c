"""What must hold for whatever is made of a plan, whoever named its parts."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import PurePosixPath

__all__ = ["defects_of", "defects_of_page", "raw_controls"]

# What a terminal obeys, or what turns a text round: C0 but tab and line feed, DEL, C1, marks and isolates of direction.
_RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def raw_controls(text: str) -> set[str]:
    return set(_RAW.findall(text))


def defects_of(name: str, status: int, headers: Mapping[str, str], body: bytes) -> list[str]:
    out = []
    if status not in (200, 422):
        out.append(f"{name}: answered {status}: {body[:300]!r}")
    for key, value in headers.items():
        if raw_controls(key + value) or not value.isascii():
            out.append(f"{name}: header {key}: {value!r}")
    told = headers.get("content-disposition", "")
    if told and not re.fullmatch(r'(attachment|inline)(; filename="?[A-Za-z0-9._-]+"?)?', told):
        out.append(f"{name}: Content-Disposition {told!r}")
    if status != 200:
        json.loads(body)
        return out
    match name.rpartition(".")[2]:
        case "html":
            out += [f"{name}: {d}" for d in defects_of_page(body.decode())]
        case "json":
            json.loads(body)
        case "txt":
            if found := raw_controls(body.decode()):
                out.append(f"{name}: {sorted(found)} as they are")
        case "zip":
            out += [f"{name}: {d}" for d in _archive(body)]
    return out


def _archive(body: bytes) -> list[str]:
    out = []
    with zipfile.ZipFile(io.BytesIO(body)) as archive:
        for info in archive.infolist():
            path = PurePosixPath(info.orig_filename)
            if path.is_absolute() or ".." in path.parts or re.search(r"[\\:\x00-\x1f\x7f]", info.orig_filename):
                out.append(f"holds {info.orig_filename[:200]!r}")
            if len(info.orig_filename) > 255 or info.external_attr >> 16 & 0o170000 not in (0, 0o100000):
                out.append(f"holds {info.orig_filename[:200]!r}, which is no plain file or has too long a name")
            if path.suffix == ".py":
                try:
                    compile(archive.read(info), info.filename, "exec")
                except (SyntaxError, ValueError) as e:
                    out.append(f"{info.filename} is no Python: {e}")
            elif path.suffix == ".json":
                json.loads(archive.read(info))
            if path.suffix in (".sh", ".txt", ".md") and (found := raw_controls(archive.read(info).decode())):
                out.append(f"{info.filename}: {sorted(found)} as they are")
    return out


class _Page(HTMLParser):
    """The elements of a page as a browser would find them."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr", "path", "rect", "line", "use"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.defects: list[str] = []
        self.scripts: list[str | None] = []
        self.within: str | None = None
        self.data: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "script":
            self.scripts.append(given.get("type"))
            self.within = given.get("type")
        for key, value in attrs:
            if key.startswith("on") or key == "style" or key == "srcdoc":
                self.defects.append(f"<{tag} {key}>")
            if key in ("href", "src", "xlink:href", "action") and not (value or "").startswith(("#", "data:image/")):
                self.defects.append(f"<{tag} {key}={value!r}>")
        if tag in ("img", "iframe", "object", "embed", "form", "base"):
            self.defects.append(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self.within = None

    def handle_data(self, data: str) -> None:
        if self.within == "application/json":
            self.data.append(data)


def defects_of_page(text: str) -> list[str]:
    page = _Page()
    page.feed(text)
    out = list(page.defects)
    if sorted(map(str, page.scripts)).count("application/json") != len(page.data) or len(page.scripts) > 4:
        out.append(f"scripts {page.scripts}")
    for data in page.data:
        json.loads(data)
    if "default-src 'none'" not in text:
        out.append("no policy")
    return out
