"""The record of a search in a file beside its plans: history.json beside plan.json, history-16.json beside plan-16.json
of several counts of devices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from planner.files import write_whole

if TYPE_CHECKING:
    from planner.planning import PlanDocument
    from planner.report.record import SearchRecord

__all__ = ["RECORD_FILE", "keep_record", "read_record", "record_beside", "record_of", "record_text"]

_NAME: Final = "history"
RECORD_FILE: Final = f"{_NAME}.json"  # beside plan.json
_SCHEMA: Final = "planner.history/1"
_MOST_BYTES: Final = 2**24


def record_text(found: Mapping[str, Any], plans: Sequence[str], *, timed: bool = True) -> str:
    """The file, for the plans with these texts; empty where nothing was recorded.  Not `timed`: without what differs
    from run to run.  An answer that is kept is given again without what reads records, which takes long to load."""
    if not found:
        return ""
    history = found["history"] if timed else {"seconds": None, "steps": [], "objectives": []}
    document = {"schema": _SCHEMA, "plans": _digests(plans), **history, "points": found["points"]}
    return json.dumps(document, indent=1) + "\n"


def record_of(text: str, plans: Sequence[str]) -> str:
    """The file of this text, for the same plans as these texts have them now; empty where it is no record."""
    record = read_record(text)
    if record is None:
        return ""
    return record.model_copy(update={"plans": _digests(plans)}).model_dump_json(by_alias=True, indent=1) + "\n"


def keep_record(text: str, path: Path) -> str | None:
    """Writes the record for the plan file of this path; why it is not there, in words, where it cannot be.

    A file of this name that is no record is somebody else's, and stays as it is."""
    if not text:
        return None
    place = _place(path)
    try:
        if place.exists() and not _is_ours(place):
            return f"{place} is there already and is no record of a search: how this search went is not kept"
        write_whole(place, text.encode())
    except OSError as e:
        return f"{place}: how the search went cannot be kept beside the plan ({e})"
    return None


def record_beside(path: Path, plan: PlanDocument) -> SearchRecord | None:
    """The record of the search that made the plan of this file; None where none lies beside it."""
    from planner.verify.label import plan_digest

    for place in dict.fromkeys((_place(path), path.with_name(RECORD_FILE))):
        try:
            if not place.is_file() or not _is_ours(place):
                continue
            record = read_record(place.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if record is not None and plan_digest(plan) in record.plans:
            return record
    return None


def read_record(text: str) -> SearchRecord | None:
    """None where the text is empty, or is no record."""
    from pydantic import ValidationError

    from planner.report.record import SearchRecord

    try:
        return SearchRecord.model_validate_json(text) if text else None
    except ValidationError:
        return None


def _digests(plans: Sequence[str]) -> list[str]:
    return [hashlib.sha256(text.encode()).hexdigest() for text in plans]


def _place(path: Path) -> Path:
    return path.with_name(f"{_NAME}{path.stem.removeprefix('plan')}.json")


def _is_ours(path: Path) -> bool:
    with path.open("rb") as file:
        return f'"{_SCHEMA}"'.encode() in file.read(100) and path.stat().st_size <= _MOST_BYTES
