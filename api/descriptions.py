"""How the routes are described in OpenAPI: problems with examples, headers, bodies, and links from answer to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel

from planner.api.errors import MEDIA_TYPE, PROBLEMS, Problem
from planner.api.schemas import FieldError, ProblemDocument
from planner.version import __version__

__all__ = ["BINARY", "describe", "header", "json_body", "link", "model_body", "problems", "takes_model", "text"]

EVERYWHERE: Final = ("bad-request", "head-too-large", "host-unknown", "internal", "unavailable")
BEHIND_KEYS: Final = ("unauthorised", "rate-limited")
BINARY: Final[Mapping[str, Any]] = {"schema": {"type": "string", "format": "binary", "minLength": 1}}
_EXAMPLE_ID: Final = "5f0d0c9e1b7a4b0c8f3e2d1c0b9a8f7e"

_MORE: Final[Mapping[str, Mapping[str, Any]]] = {
    "too-large": {"limit_bytes": 67108864},
    "unsupported-media-type": {"expected": ["application/octet-stream", "multipart/form-data"]},
    "cannot-fit": {"lower_bound_bytes": 3221225472, "sufficient_bytes": 4294967296},
}
_FIELDS: Final = {
    "validation": [{"in": "query", "name": "devices", "detail": "Input should be greater than or equal to 1"}]
}

_BODIES: list[type[BaseModel]] = []  # of `json_body`


def problems(*names: str, keys: bool = True) -> dict[int | str, dict[str, Any]]:
    """The responses of these problems and of those that any request may meet."""
    out: dict[int | str, dict[str, Any]] = {}
    for name in (*names, *EVERYWHERE, *(BEHIND_KEYS if keys else ())):
        kind = PROBLEMS[name]
        entry = out.setdefault(
            kind.status,
            {"description": "", "content": {MEDIA_TYPE: {"schema": _ref(ProblemDocument), "examples": {}}}},
        )
        entry["description"] = f"{entry['description']}; {kind.title}".removeprefix("; ")
        example = Problem(name, kind.meaning, errors=_FIELDS.get(name, ()), more=_MORE.get(name))
        entry["content"][MEDIA_TYPE]["examples"][name] = {"summary": kind.title, "value": example.document(_EXAMPLE_ID)}
        if kind.status == 401:
            entry["headers"] = {"WWW-Authenticate": header("How to show a key.")}
        if kind.status in (429, 503):
            entry.setdefault("headers", {})["Retry-After"] = header("Seconds to wait.", "integer", required=False)
    return out


def header(description: str, kind: str = "string", *, required: bool = True) -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}, "required": required}


def text(media_type: str, description: str) -> dict[str, Any]:
    """A response of plain text or HTML."""
    return {"description": description, "content": {media_type: {"schema": {"type": "string"}}}}


def link(operation: str, description: str, **parameters: str) -> dict[str, Any]:
    """From a member of this answer to a parameter of another operation."""
    return {"operationId": operation, "description": description, "parameters": parameters}


def model_body(*, required: bool, constraints: bool) -> dict[str, Any]:
    """The request body that carries a model; with `constraints`, in a form, those too."""
    parts = {"model": {**BINARY["schema"], "description": "ONNX file; weights are not needed."}}
    if constraints:
        description = "As `planner search --constraints`."
        parts["constraints"] = {"type": "string", "format": "binary", "description": description}
    form = {
        "type": "object",
        "properties": parts,
        "required": ["model"],
        "additionalProperties": False,
    }
    return {
        "required": required,
        "content": {"application/octet-stream": dict(BINARY), "multipart/form-data": {"schema": form}},
    }


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """The request body that is a JSON object of this model, which is described beside it."""
    if model not in _BODIES:
        _BODIES.append(model)
    return {"required": True, "content": {"application/json": {"schema": _ref(model)}}}


def takes_model(route: APIRoute) -> bool:
    """Whether its request body is a `model_body`."""
    body = (route.openapi_extra or {}).get("requestBody", {})
    return "multipart/form-data" in body.get("content", {})


def _ref(model: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def describe(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, made once."""
    if app.openapi_schema is None:
        found = get_openapi(title="planner", version=__version__, routes=app.routes, description=_ABOUT)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        described: tuple[type[BaseModel], ...] = (ProblemDocument, FieldError, *_BODIES)
        for model in described:
            schemas[model.__name__] = _schema(model)
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        found["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "`planner keys create` prints one."},
        }
        for path, operations in found["paths"].items():
            for operation in operations.values():
                if path.startswith("/v1/") and "security" not in operation:
                    operation["security"] = [{"key": []}]
                for response in operation["responses"].values():
                    response.setdefault("headers", {}).setdefault("X-Request-Id", header("Finds the request in logs."))
        app.openapi_schema = found
    return app.openapi_schema


def _schema(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_json_schema(ref_template="#/components/schemas/{model}", by_alias=True)
    found.pop("$defs", None)
    return found


_ABOUT: Final = (
    "Plans for training and serving on many devices: send an ONNX graph, get a parallel strategy with a proven gap. "
    "Errors are problem documents (RFC 9457)."
)
