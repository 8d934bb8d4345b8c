"""plan.json, read and written whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner.errors import InputError
from planner.files import write_whole
from planner.planning.consistency import contradiction
from planner.planning.document import SCHEMA, PlanDocument

__all__ = ["MIXED_SCHEMA", "plan_text", "read_plan", "write_plan"]

MIXED_SCHEMA = "planner.mixed/1"  # a configuration for devices of several kinds, which is no plan


def plan_text(plan: PlanDocument) -> str:
    """The file's content, with keys in a fixed order: equal plans are equal bytes."""
    return plan.model_dump_json(by_alias=True, indent=1) + "\n"


def write_plan(plan: PlanDocument, path: str | os.PathLike[str]) -> None:
    """Writes the plan atomically.

    InputError where the place cannot be written to.
    """
    try:
        write_whole(Path(path), plan_text(plan).encode())
    except OSError as e:
        raise InputError(f"plan {path}: cannot be written ({e}); give another directory with --out") from e


def read_plan(path: str | os.PathLike[str]) -> PlanDocument:
    """InputError where the file is missing, is not JSON, or is not a plan of this schema."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as e:
        raise InputError(_not_there(Path(path))) from e
    except UnicodeDecodeError as e:
        if Path(path).suffix == ".onnx":
            raise InputError(
                f"plan {path}: is an ONNX model, where a plan.json is expected (a model, where the command takes one, "
                f"goes behind it); make a plan with `planner search {path} --devices N`"
            ) from e
        raise InputError(f"plan {path}: cannot be read as text; give a plan.json that `planner search` wrote") from e
    except OSError as e:
        raise InputError(f"plan {path}: cannot be read ({e}); give a plan.json that `planner search` wrote") from e
    try:
        data: Any = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        raise InputError(f"plan {path}: is not JSON ({e}); give a plan.json that `planner search` wrote") from e
    found = data.get("schema") if isinstance(data, dict) else None
    if found == MIXED_SCHEMA:
        raise InputError(
            f"plan {path}: expected a plan.json, found a configuration for devices of several kinds, of which no plan "
            "is made yet: it says stages, layers and degrees; give these to your launcher yourself"
        )
    if found is None:
        raise InputError(f"plan {path}: is JSON without a `schema`, and no plan; give one that `planner search` wrote")
    if found != SCHEMA:
        raise InputError(f"plan {path}: expected schema {SCHEMA!r}, found {found!r}; search again with this version")
    try:
        plan = PlanDocument.model_validate(data)
    except ValidationError as e:
        raise InputError(f"plan {path}: {_first_error(e.errors())}") from e
    wrong = contradiction(plan)
    if wrong is not None:
        raise InputError(f"plan {path}: {wrong}; search again")
    return plan


def _not_there(path: Path) -> str:
    """What was looked for, and what there is instead."""
    said = f"plan {path}: cannot be read, there is no such file"
    beside = sorted(p.name for p in path.parent.glob("plan*.json") if p.is_file())
    if not path.parent.is_dir() or not beside:
        return f"{said}; give a plan.json that `planner search` wrote, or its folder"
    return f"{said}, but {' and '.join(beside[:4])} beside it: name one of these"


def _first_error(errors: Sequence[Any]) -> str:
    first = errors[0]
    where = ".".join(str(p) for p in first["loc"])
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"at {where}: {first['msg']}{more}"
