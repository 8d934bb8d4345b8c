"""What goes over the wire: bodies, queries, documents."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from planner.api.client.problems import ConnectionFailed

__all__ = ["JSON", "OCTETS", "Option", "document_of", "file_bytes", "list_of", "model_bytes", "name_of", "query_of"]

JSON = "application/json"
OCTETS = "application/octet-stream"

Option = str | int | float | list[str] | tuple[str, ...] | None


def name_of(path: Path) -> str:
    """The model's name in the plan, in the characters that the service takes for one."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.stem)[:100]
    return name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"[:100]


def model_bytes(model: str | os.PathLike[str] | bytes, strip: bool) -> tuple[bytes, str | None]:
    """What is sent of a model, and its name where it has one."""
    from planner.frontends.file.strip import strip_file, strip_model  # loads onnx

    if isinstance(model, bytes):
        return strip_model(model) if strip else model, None
    path = Path(model)
    return strip_file(path) if strip else path.read_bytes(), name_of(path)


def file_bytes(path: str | os.PathLike[str]) -> tuple[bytes, str]:
    return Path(path).read_bytes(), Path(path).name


def query_of(options: Mapping[str, Option]) -> list[tuple[str, str]]:
    """Query parameters; lists repeat, None says nothing."""
    out: list[tuple[str, str]] = []
    for name, value in options.items():
        listed = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
        out += [(name, str(v).lower() if isinstance(v, bool) else str(v)) for v in listed]
    return out


def document_of(response: httpx.Response) -> Mapping[str, Any]:
    found = _decoded(response)
    if not isinstance(found, dict):
        raise ConnectionFailed(f"{response.url}: expected a JSON object; is it a planner service?")
    return found


def list_of(response: httpx.Response) -> list[Mapping[str, Any]]:
    found = _decoded(response)
    if not isinstance(found, list):
        raise ConnectionFailed(f"{response.url}: expected a JSON list; is it a planner service?")
    return found


def _decoded(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        raise ConnectionFailed(f"{response.url}: the answer is no JSON; is it a planner service?") from None
