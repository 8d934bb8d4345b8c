"""The page at `/` and its files, and the page of the interface at `/docs`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request, Response

from planner.api.documentation import documentation
from planner.api.errors import Problem
from planner.api.form import with_fields
from planner.api.respond import constant
from planner.api.security import page_policy

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_FOLDER: Final = Path(__file__).parent.parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".onnx": "application/octet-stream",
}


@cache
def _files() -> dict[str, Path]:
    """By name: what is not listed here is never opened."""
    found = (p for p in _FOLDER.rglob("*") if p.is_file() and p.suffix in _TYPES)
    return {p.relative_to(_FOLDER).as_posix(): p for p in found}


async def _file(request: Request, name: str) -> Response:
    path = _files().get(name)
    if path is None:
        raise Problem("not-found", f"there is no file {name[:100]!r}")
    return await constant(request, _content(path), _TYPES[path.suffix], _headers())


def _headers() -> dict[str, str]:
    return {"content-security-policy": page_policy(), "cache-control": "no-cache", "vary": "Accept-Encoding"}


@cache
def _content(path: Path) -> bytes:
    content = path.read_bytes()
    return with_fields(content.decode()).encode() if path.suffix == ".html" else content


@router.get("/")
async def index(request: Request) -> Response:
    return await _file(request, "index.html")


@router.get("/static/{name:path}")
async def static(request: Request, name: str) -> Response:
    return await _file(request, name)


@router.get("/docs")
async def docs(request: Request) -> Response:
    """The OpenAPI document for people; made once, as the document is."""
    found: bytes | None = getattr(request.app.state, "documentation", None)
    if found is None:
        found = request.app.state.documentation = documentation(request.app.openapi()).encode()
    return await constant(request, found, _TYPES[".html"], _headers())
