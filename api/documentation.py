"""The OpenAPI document for people: one page without scripts, which loads nothing but the service's own style."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

__all__ = ["documentation"]

_CODE: Final = re.compile(r"`([^`]+)`")
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>planner: the service's interface</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/app.css">
<link rel="stylesheet" href="/static/docs.css">
</head>
<body class="docs">
<main id="main">
"""
_ELSEWHERE: Final = '<p>For programs: <a href="/openapi.json">openapi.json</a>. The service: <a href="/">/</a>.</p>'


def documentation(document: Mapping[str, Any]) -> str:
    """The page."""
    info = document["info"]
    title = f"<h1>{_text(info['title'])} {_text(info['version'])}</h1>"
    parts = [_HEAD, title, f"<p>{_words(info['description'])}</p>", _ELSEWHERE]
    by_tag: dict[str, list[str]] = {}
    contents: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            tag = next(iter(operation.get("tags", ())), "other")
            by_tag.setdefault(tag, []).append(_operation(path, method, operation))
            shown = f"{method.upper()} {path}"
            item = f'<li><a href="#{_text(operation["operationId"])}"><code>{_text(shown)}</code></a>'
            contents.setdefault(tag, []).append(f"{item} {_words(operation['summary'])}</li>")
    for tag, items in contents.items():
        parts.append(f"<h2>{_text(tag.capitalize())}</h2><ul>{''.join(items)}</ul>")
    for tag, sections in by_tag.items():
        parts += [f'<h2 class="group">{_text(tag.capitalize())}</h2>', *sections]
    parts.append('<h2 class="group">Documents</h2>')
    parts += [_schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())]
    return "\n".join([*parts, "</main>", "</body>", "</html>", ""])


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    parts = [f'<section class="card" id="{_text(operation["operationId"])}">']
    parts.append(f"<h3><code>{method.upper()} {_text(path)}</code> {_words(operation['summary'])}</h3>")
    if operation.get("description"):
        parts.append(f"<p>{_words(operation['description'])}</p>")
    if operation.get("security"):
        parts.append("<p>Needs <code>Authorization: Bearer KEY</code> where the service has keys.</p>")
    rows = [
        (f"{_text(p['name'])}", p["in"], _type(p["schema"]), "required" if p.get("required") else "", _about(p))
        for p in operation.get("parameters", ())
    ]
    parts.append(_table(("Parameter", "In", "Type", "Required", "Meaning"), rows))
    if "requestBody" in operation:
        kinds = " or ".join(f"<code>{_text(kind)}</code>" for kind in operation["requestBody"]["content"])
        required = "" if operation["requestBody"].get("required") else ", which may be left out"
        parts.append(f"<p>Body: {kinds}{required}.</p>")
    answers = [(_text(status), _bodies(r), _answer(r)) for status, r in operation["responses"].items()]
    parts.append(_table(("Answer", "Body", "Meaning"), answers))
    return "\n".join([*filter(None, parts), "</section>"])


def _answer(response: Mapping[str, Any]) -> str:
    """Its description, and of problems their types."""
    examples = [name for content in response.get("content", {}).values() for name in content.get("examples", {})]
    types = ", ".join(f"<code>{_text(name)}</code>" for name in examples)
    return f"{_words(response['description'])}{': ' + types if types else ''}"


def _bodies(response: Mapping[str, Any]) -> str:
    content = {k: v for k, v in response.get("content", {}).items() if k != "application/problem+json"}
    return ", ".join(f"{_text(media)} {_type(body.get('schema', {}))}".strip() for media, body in content.items())


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (_text(member), _type(inner), "" if member in required else "may be left out", _about(inner))
        for member, inner in schema.get("properties", {}).items()
    ]
    about = f"<p>{_words(schema['description'])}</p>" if schema.get("description") else ""
    kind = "" if rows else f"<p>{_type(schema)}</p>"
    head = f'<section class="card" id="schema-{_text(name)}"><h3>{_text(name)}</h3>'
    return f"{head}{about}{kind}{_table(('Member', 'Type', 'Required', 'Meaning'), rows)}</section>"


def _type(schema: Mapping[str, Any]) -> str:
    """In a few words."""
    if "$ref" in schema:
        name = _text(str(schema["$ref"]).rpartition("/")[2])
        return f'<a href="#schema-{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_type(s) for s in schema["anyOf"] if s.get("type") != "null"))
    if "enum" in schema:
        return " | ".join(_text(str(value)) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return _text(" ".join([str(schema.get("type", "any")), *_limits(schema)]))


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for name, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("maxLength", "length ≤")):
        if name in schema:
            yield f"{sign} {schema[name]}"


def _about(described: Mapping[str, Any]) -> str:
    return _words(described.get("description") or described.get("schema", {}).get("description") or "")


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already."""
    if not rows:
        return ""
    head = "".join(f'<th scope="col">{h}</th>' for h in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(plain: str) -> str:
    return escape(plain)


def _words(plain: str) -> str:
    """With what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(plain)).replace("\n\n", "<br>")
