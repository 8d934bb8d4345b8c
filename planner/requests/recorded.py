"""A request as it stands in plan.json, and back as a value and as a command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from planner.cost_models import profile_names
from planner.errors import InputError
from planner.planning.constraints import constraints_text, read_constraints
from planner.planning.document import SCHEMA as PLAN_SCHEMA
from planner.planning.searched import FileDocument, RequestDocument
from planner.requests.options import options_of, read, refuse_others
from planner.requests.search import SearchRequest
from planner.requests.values import bindings, byte_size

__all__ = ["arguments_of", "profile_text", "recorded", "request_of"]


# What a request and its record have in common by the same name; whether a plan is `reproducible`, the search finds out.
_SAME: Final = tuple(
    sorted(
        (RequestDocument.model_fields.keys() & {f.name for f in fields(SearchRequest)})
        - {"devices", "constraints", "bind", "reproducible"}
    )
)
_OTHERWISE: Final = ("pin", "constraints", "bind", "reproducible")  # stands there in another form


def recorded(request: SearchRequest) -> RequestDocument:
    """What is asked for; devices are those of the first count.  InputError where a file cannot be read."""
    same = {name: getattr(request, name) for name in _SAME}
    return RequestDocument(
        **same,
        devices=request.counts[0],
        profile=profile_text(request.hardware),
        constraints=None if request.constraints is None else _constraints(request.constraints),
        pins=request.pin,
        bind=dict(sorted(bindings(request.bind).items())),
        options=_further(request),
    )


def _further(request: SearchRequest) -> dict[str, JsonValue]:
    """Options that the record has no key for, as JSON; a file goes by its name."""
    wanted = {f.name for f in options_of(type(request)) if f.metadata["recorded"]} - {*_SAME, *_OTHERWISE}
    return {n: str(v) if isinstance(v, Path) else v for n, v in request.given.items() if n in wanted}


def profile_text(hardware: str) -> FileDocument | None:
    """The file of a hardware that is not packaged.  InputError where it cannot be read."""
    return None if hardware in profile_names() else _file(Path(hardware), "--hardware")


def _constraints(path: Path) -> FileDocument:
    """A plan given as constraints is kept as the pins that it comes to."""
    file = _file(path, "--constraints")
    if f'"{PLAN_SCHEMA}"' in file.text[:200]:
        return FileDocument(name=file.name, text=constraints_text(read_constraints(path)))
    return file


def _file(path: Path, option: str) -> FileDocument:
    try:
        return FileDocument(name=str(path), text=path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise InputError(f"{option} {path}: cannot be read ({e}); give a text file in UTF-8") from e


def request_of(document: RequestDocument, model: Path, request: type[SearchRequest] = SearchRequest) -> SearchRequest:
    """What asks the same of the model, as a `request`; files go by their names.  UsageError where it has no such option
    or value."""
    refuse_others(document.options, {f.name for f in options_of(request)} - {*_SAME, *_OTHERWISE})
    return request(
        **{name: getattr(document, name) for name in _SAME},
        **{name: read(request, name, value) for name, value in document.options.items()},
        model=model,
        devices=str(document.devices),
        constraints=None if document.constraints is None else Path(document.constraints.name),
        pin=list(document.pins),
        bind=[f"{name}={size}" for name, size in document.bind.items()],
    )


def arguments_of(request: SearchRequest, pins: Sequence[str] = ()) -> list[str]:
    """Arguments of `planner search` that ask for it, with further `pins`."""
    model = str(request.model)
    found: list[str] = [f"./{model}" if model.startswith("-") else model, "--devices", request.devices]
    for name, value in request.given.items():
        option = f"--{name.replace('_', '-')}"
        if name in _sizes(type(request)):
            found += (option, f"{value}B")
            continue
        if value is True:
            found.append(option)
            continue
        for item in value if isinstance(value, list) else [value]:
            found += _said(option, str(item))
    for pin in pins:
        found += _said("--pin", pin)
    return found


def _sizes(request: type[SearchRequest]) -> set[str]:
    return {f.name for f in options_of(request) if f.metadata["option"].get("type") is byte_size}


def _said(option: str, text: str) -> tuple[str, ...]:
    return (f"{option}={text}",) if text.startswith("-") else (option, text)
