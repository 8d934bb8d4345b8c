"""docs/http-api.md, made of the OpenAPI document: `python -m planner.api.reference > docs/http-api.md`."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from planner.api.app import create_app
from planner.api.settings import Settings

__all__ = ["reference"]

_HEAD: Final = """\
# The HTTP interface, request by request

This page is the reference of the service's interface, for those who write a client: every request, its parameters, its
answers, and the documents in them. It is made of the OpenAPI document that the service has at `/openapi.json`
(`python -m planner.api.reference > docs/http-api.md`), and a test compares. [service.md](service.md) explains how the
service works and how it is set up.

Where the service has keys, requests carry one as `Authorization: Bearer KEY`. Errors are problem documents of RFC 9457,
whose `type` ends in the name that is listed with each answer.
"""

_SHARED: Final = """\
## Answers of most requests

These answers are not repeated below. Requests that need no key have no 401.
"""
_MOST: Final = 0.75  # of all requests have an answer, where it is listed once


def reference() -> str:
    """The page."""
    with tempfile.TemporaryDirectory() as folder:
        document = json.loads(json.dumps(create_app(Settings(data=Path(folder))).openapi()))
    operations = [(m.upper(), path, o) for path, ms in document["paths"].items() for m, o in ms.items()]
    operations.sort(key=lambda o: (o[2]["tags"][0] if o[2].get("tags") else "", o[1], o[0]))
    rows = [(f"[`{method} {path}`](#{o['operationId'].lower()})", o["summary"]) for method, path, o in operations]
    shared = _shared([o for _, _, o in operations])
    parts = [_HEAD, *_table(("request", "what it is"), rows), ""]
    parts += [_SHARED, *_table(("status", "meaning"), _answers(sorted(shared.items()))), ""]
    for method, path, operation in operations:
        parts += _operation(method, path, operation, shared)
    parts.append("## Documents\n")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += _schema(name, schema)
    return "\n".join(parts).rstrip("\n") + "\n"


def _shared(operations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answers that most of them have in the same words, by status."""
    counts = Counter((k, v["description"]) for o in operations for k, v in o["responses"].items() if k >= "4")
    often = {status: words for (status, words), n in counts.items() if n >= _MOST * len(operations)}
    found = {k: v for o in operations for k, v in o["responses"].items() if often.get(k) == v["description"]}
    return found


def _operation(method: str, path: str, operation: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {operation['operationId']}\n"
    yield f"`{method} {path}`: {_stopped(operation['summary'])}\n"
    if operation.get("description"):
        yield f"{_line(operation['description'])}\n"
    rows = [
        (f"`{p['name']}`", p["in"], _type(p["schema"]), "yes" if p.get("required") else "", _about(p))
        for p in operation.get("parameters", ())
    ]
    if rows:
        yield from (*_table(("parameter", "in", "type", "required", "meaning"), rows), "")
    if "requestBody" in operation:
        body = operation["requestBody"]
        kinds = " or ".join(f"`{kind}`" for kind in body["content"])
        yield f"The body is {kinds}{'' if body.get('required') else ', and may be left out'}.\n"
    own = sorted((k, r) for k, r in operation["responses"].items() if _line(r["description"]) != _words(shared.get(k)))
    yield from (*_table(("status", "body", "meaning"), [(s, _bodies(r), w) for (s, r), (_, w) in _pairs(own)]), "")


def _words(response: Mapping[str, Any] | None) -> str:
    return "" if response is None else _line(response["description"])


def _pairs(answers: list[tuple[str, Any]]) -> Iterator[tuple[tuple[str, Any], tuple[str, str]]]:
    return zip(answers, _answers(answers), strict=True)


def _answers(answers: Any) -> list[tuple[str, str]]:
    """With the types of problems."""
    found = []
    for status, response in answers:
        names = [n for content in response.get("content", {}).values() for n in content.get("examples", {})]
        types = f" ({', '.join(f'`{n}`' for n in names)})" if names else ""
        found.append((status, f"{_line(response['description'])}{types}"))
    return found


def _bodies(response: Mapping[str, Any]) -> str:
    content = {k: v for k, v in response.get("content", {}).items() if k != "application/problem+json"}
    shown = (f"`{media}` {_type(body['schema']) if body.get('schema') else ''}" for media, body in content.items())
    return ", ".join(text.strip() for text in shown)


def _schema(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    if schema.get("description"):
        yield f"{_line(schema['description'])}\n"
    required = schema.get("required", ())
    rows = [
        (f"`{member}`", _type(inner), "" if member in required else "yes", _about(inner))
        for member, inner in schema.get("properties", {}).items()
    ]
    if rows:
        yield from (*_table(("member", "type", "may be absent", "meaning"), rows), "")
    else:
        yield f"It is a {_type(schema)}.\n"


def _type(schema: Mapping[str, Any]) -> str:
    """In a few words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(s) for s in schema["anyOf"] if s.get("type") != "null"))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "maxLength": "length ≤"}
    limits = [f"{sign} {schema[name]}" for name, sign in signs.items() if name in schema]
    return " ".join([str(schema.get("type", "any")), *limits])


def _about(described: Mapping[str, Any]) -> str:
    return _line(described.get("description") or described.get("schema", {}).get("description") or "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return [*lines, *(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows)]


def _line(text: str) -> str:
    text = "The answer" if text == "Successful Response" else text  # what FastAPI says where nothing is said
    return " ".join(text.split()).replace("<", "&lt;")


def _stopped(text: str) -> str:
    return f"{text[0].lower()}{text[1:].rstrip('.')}."


if __name__ == "__main__":
    print(reference(), end="")
