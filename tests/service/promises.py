"""Whether an answer is one that the OpenAPI document promises: its status, its type of content and its schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from planner.api import schemas
from planner.api.routes.hardware import HardwareList

__all__ = ["broken_promise"]

_MODELS: Final[Mapping[str, Any]] = {name: getattr(schemas, name) for name in schemas.__all__} | {
    "HardwareList": HardwareList
}


def broken_promise(answer: Any, operation: Mapping[str, Any]) -> str | None:
    """What is not as promised; None where all is.  `answer` is one of httpx."""
    if answer.status_code >= 500:
        return f"{answer.status_code}: {answer.text[:300]}"
    if str(answer.status_code) not in operation["responses"]:
        return f"the status {answer.status_code} is not promised: {answer.text[:300]}"
    promised = operation["responses"][str(answer.status_code)].get("content", {})
    media = answer.headers.get("content-type", "").split(";")[0]
    if not promised:
        return f"content where none is promised: {answer.content[:100]!r}" if answer.content else None
    if media not in promised:
        return f"{media!r} is none of {', '.join(promised)}"
    if answer.status_code >= 400 and media != "application/problem+json":
        return f"an error that is no problem document: {media!r}"
    reference = promised[media].get("schema", {}).get("$ref")
    if reference is None:
        return None
    try:
        TypeAdapter(_MODELS[reference.rpartition("/")[2]]).validate_json(answer.content, strict=True)
    except ValidationError as e:
        return f"no {reference.rpartition('/')[2]}: {e}"
    return None
