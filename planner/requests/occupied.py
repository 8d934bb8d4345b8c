"""What lies where a result is to be written: nothing that another request made is replaced without being told to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planner.errors import InputError, UsageError
from planner.requests.plan_model import MODEL_FILE, is_of, model_content
from planner.requests.values import profile_of

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.requests.search import SearchRequest

__all__ = [
    "FORCE",
    "refuse_inputs",
    "refuse_inputs_and_models",
    "refuse_other_document",
    "refuse_other_model",
    "refuse_other_plan",
    "refuse_other_request",
    "refuse_unwritable",
]

FORCE: Final = "replace files that are there, even those of another request"
_WAY: Final = "name another place with --out, or replace it with --force"
# How is searched, and not what for: the same request may be repeated with more time, or from where it ended.
_HOW: Final = {"solver", "time_limit", "reproducible"}
# A plan of a configuration that was found says this one's strategy, in full, and none of these.
_OF_FOUND: Final = {"strategy", "stages", "micro_batches", "recompute", "space", "mesh"}


def refuse_other_request(path: Path, request: SearchRequest, devices: int, *, further: bool = False) -> None:
    """UsageError where a plan of another request, or no plan, is in the place of a plan for so many devices.

    `further`: the place is for another than the best plan, whose mesh is its own.
    """
    there = _document(path)
    if there is None:
        return
    model = there.get("model", {}).get("name") if isinstance(there.get("model"), dict) else None
    requested = _requested(there)
    if model is None or requested is None:
        raise UsageError(f"{path}: is there already, and does not say what request it is of; {_WAY}")
    if model != request.model.stem and not _same_file(path.parent / MODEL_FILE, request.model):
        raise UsageError(f"{path}: holds a plan of another model, {model}, not {request.model.stem}; {_WAY}")
    from planner.requests.recorded import recorded  # only now: it loads the planner, a known answer does not need it

    profile_of(request.hardware)  # what is no request at all is not another one
    here = recorded(request).model_dump(mode="json") | {"devices": devices}
    ignored = set(_HOW)
    if further:
        ignored.add("mesh")
    if "," in request.devices:
        ignored.add("micro_batches")  # as the least count has it
    if here["strategy"] is None and _was_found(requested.get("strategy")):
        ignored |= _OF_FOUND
    found = [
        f"{_option(name)} {_value(theirs)} there, {_value(ours)} here"
        for name, theirs, ours in _differences(requested, here, ignored)
    ]
    if found:
        raise UsageError(f"{path}: holds the plan of another request ({'; '.join(found[:3])}); {_WAY}")


def refuse_other_plan(path: Path, plan: PlanDocument) -> None:
    """UsageError where a plan of another model or with other constraints, or no plan, is in the place of this one."""
    there = _document(path)
    if there is None:
        return
    same = plan.model_dump(mode="json", by_alias=True)
    for what, of in (("model", _model), ("request", _what_for)):
        if of(there) != of(same):
            raise UsageError(f"{path}: is there already, and of another {what}; {_WAY}")


def refuse_other_model(folder: Path, stripped: bytes, given: Path) -> None:
    """UsageError where the model kept in the folder, of the plans that lie there, is not the one given, whose file
    without weights is `stripped`."""
    content = model_content(folder)
    if content is not None and any(folder.glob("plan*.json")) and not is_of(content, stripped):
        raise UsageError(
            f"{folder / MODEL_FILE}: is of another model than {given}, and so is the plan beside it; name another "
            "folder with --out, or replace it with --force"
        )


def refuse_other_document(path: Path, document: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """UsageError where another JSON document than of this kind, or with other values under these names, is there."""
    there = _document(path)
    if there is None:
        return
    if there.get("schema") != document.get("schema"):
        raise UsageError(f"{path}: is there already, and is no {document.get('schema')}; {_WAY}")
    found = [
        f"{name} {_value(there.get(name))} there, {_value(document.get(name))} here"
        for name in names
        if _place(name, there.get(name)) != _place(name, document.get(name))
    ]
    if found:
        raise UsageError(f"{path}: is of another request ({'; '.join(found[:3])}); {_WAY}")


def refuse_unwritable(folder: Path) -> None:
    """InputError where files cannot be written to a folder, which may have to be made: said before a long search."""
    at = folder.absolute()
    while not at.exists() and at != at.parent:
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        why = "you may not write there" if at.is_dir() else "it is a file"
        where = "" if at == folder.absolute() else f"{at}: "
        raise InputError(f"--out {folder}: cannot be written to ({where}{why}); give another directory with --out")


def refuse_inputs(path: Path, *inputs: Path | None) -> None:
    """UsageError where a result would be written over what it is made of."""
    for given in inputs:
        if given is not None and _same_file(path, given):
            raise UsageError(f"{path}: is what is read here, and would be written over; name another place")


def refuse_inputs_and_models(path: Path, *inputs: Path | None) -> None:
    """UsageError where a page or a trace would be written over what it is made of, or over a model or a plan."""
    refuse_inputs(path, *inputs)
    if path.is_file() and (path.suffix == ".onnx" or _is_plan(path)):
        kind = "model" if path.suffix == ".onnx" else "plan"
        raise UsageError(f"{path}: a {kind} is there, and would be written over; name another place")


def _same_file(a: Path, b: Path) -> bool:
    return a.is_file() and b.is_file() and a.samefile(b)


def _requested(plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request that a plan says it answers, with all its fields."""
    from pydantic import ValidationError

    from planner.planning.searched import RequestDocument

    try:
        requested = RequestDocument.model_validate(plan["search"]["request"])
    except (KeyError, TypeError, ValidationError):
        return None
    return requested.model_dump(mode="json")


def _model(plan: Mapping[str, Any]) -> Any:
    return plan["model"].get("digest") if isinstance(plan.get("model"), dict) else None


def _what_for(plan: Mapping[str, Any]) -> Any:
    requested = _requested(plan)
    return (
        None if requested is None else {name: _content(value) for name, value in requested.items() if name not in _HOW}
    )


def _place(name: str, value: Any) -> Any:
    """A model by where it is: it may be named in many ways."""
    return os.path.abspath(value) if name == "model" and isinstance(value, str) else value


def _document(path: Path) -> dict[str, Any] | None:
    """The JSON object there, an empty one where there is something else; None where there is nothing."""
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_plan(path: Path) -> bool:
    with path.open("rb") as file:
        return b'"planner.plan/' in file.read(200)


def _was_found(strategy: object) -> bool:
    """Whether it is spelled as a search spells what it has found."""
    return isinstance(strategy, str) and strategy.startswith("megatron:dp=") and "micro_batch=" in strategy


def _differences(
    requested: Mapping[str, Any], here: Mapping[str, Any], ignored: set[str]
) -> list[tuple[str, Any, Any]]:
    """Names with the values there and here, where these differ."""
    names = [name for name in here if name not in {*ignored, "hardware", "profile"}]
    pairs = [("hardware", _hardware(requested), _hardware(here))]
    pairs += [(name, requested.get(name), here.get(name)) for name in names]
    return [(name, theirs, ours) for name, theirs, ours in pairs if _content(theirs) != _content(ours)]


def _hardware(request: Mapping[str, Any]) -> Any:
    return request.get("profile") or request.get("hardware")


def _content(value: Any) -> Any:
    """Of a file its text: it may be named in many ways."""
    return value["text"] if _is_file(value) else value


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"name", "text"}


def _option(name: str) -> str:
    return "--pin" if name == "pins" else f"--{name.replace('_', '-')}"


def _value(value: Any) -> str:
    if value in (None, [], {}):
        return "not given"
    if _is_file(value):
        return f"the file {value['name']}"
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list):
        return " ".join(f"{v!r}" for v in value)[:80]
    return str(value)[:80]
