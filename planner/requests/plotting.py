"""What a figure is made of: plans, folders of plans, what `planner search --json` printed, and evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import InputError, UsageError
from planner.requests.comparison import clock_of_plan
from planner.requests.plan_model import MODEL_FILE
from planner.requests.rates import rates_beside
from planner.requests.record_file import record_beside

if TYPE_CHECKING:
    from planner.report.plots import Kind, Point

__all__ = ["plot_data"]

_MOST_BYTES = 2**30  # of a document


def plot_data(kind: Kind, inputs: Sequence[str]) -> dict[str, Any]:
    """The data of a figure (docs/plot.md).  `inputs`: PATH or LABEL=PATH.

    InputError where a file cannot be read, or is none of these."""
    from planner.planning import read_plan
    from planner.report import plots

    if kind == "timeline":
        if len(inputs) != 1:
            raise UsageError(f"plot timeline: expected one plan, found {len(inputs)}; draw them one by one")
        path = Path(_named(inputs[0])[1])
        return plots.timeline(read_plan(path / "plan.json" if path.is_dir() else path))
    points = [p for text in inputs for p in _points(text, kind)]
    made = {"scaling": plots.scaling, "pareto": plots.pareto, "breakdown": plots.breakdown}
    return made[kind](points)


def _named(text: str) -> tuple[str | None, str]:
    """`LABEL=PATH`, where there is no such file."""
    label, equals, path = text.partition("=")
    return (label, path) if equals and not Path(text).exists() else (None, text)


def _points(text: str, kind: Kind) -> Iterator[Point]:
    label, name = _named(text)
    path = Path(name)
    files = _plans_of(path) if path.is_dir() else [path]
    for file in files:
        for document in _documents(file):
            yield from _of_document(document, file, label, kind)


def _plans_of(folder: Path) -> list[Path]:
    """Those of several counts of devices, or the one plan; an evaluation where there is none."""
    several = sorted(folder.glob("plan-*.json"))
    for files in ([folder / "plan.json"], several, [folder / "evaluation.json"]):
        found = [f for f in files if f.is_file()]
        if found:
            return found
    raise InputError(f"{folder}: there is no plan.json, plan-N.json or evaluation.json in it; name another folder")


def _documents(path: Path) -> list[dict[str, Any]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"{path}: larger than {_MOST_BYTES} bytes; give a plan or what `planner search` printed")
        read = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); give a plan.json, or what --json printed") from e
    except (ValueError, RecursionError) as e:
        raise InputError(f"{path}: is no JSON; give a plan.json, or what `planner search --json` printed") from e
    listed = read if isinstance(read, list) else [read]
    if not listed or not all(isinstance(d, dict) for d in listed):
        raise InputError(f"{path}: expected a plan, or what `planner search --json` printed, found neither")
    return listed


def _of_document(d: dict[str, Any], path: Path, label: str | None, kind: Kind) -> Iterator[Point]:
    from planner.report.plots import Point

    if d.get("schema") == "planner.plan/1":
        point = _of_plan(path, label)
        yield point
        if kind == "pareto":
            yield from _found_with(path, point, label)
        return
    try:
        devices, batch = int(d["devices"]), None if d["batch"] is None else int(d["batch"])
        if devices < 1 or not math.isfinite(float(d["step_time_s"])):
            raise ValueError("the number of devices or the step")
        name = label or str(d.get("strategy") or d.get("in_words") or path.stem)
        evaluated = str(d.get("schema", "")).startswith("planner.evaluation/")
        causes = _causes(d) if kind == "breakdown" else {}
        yield Point(
            label or (str(d["strategy"]) if evaluated else "searched"),
            name,
            step_time_s=float(d["step_time_s"]),
            peak_memory_bytes=int(d["peak_memory_bytes"]),
            samples_per_s=d.get("samples_per_s"),
            tokens_per_s=d.get("tokens_per_s"),
            mfu=d.get("mfu"),
            causes=causes,
            devices=devices,
            batch=batch,
            model=_text(d.get("name")),
            mode=_text(d.get("mode")),
            hardware=_text(d.get("hardware")),
        )
        for row in (d.get("uniform") or {}).get("front", []) if kind == "pareto" else []:
            yield Point(
                label or "front of the search",
                str(row["parallelism"]),
                step_time_s=float(row["step_time_s"]),
                peak_memory_bytes=int(row["peak_memory_bytes"]),
                front=True,
                devices=devices,
                batch=batch,
            )
    except (KeyError, TypeError, ValueError) as e:
        raise InputError(
            f"{path}: expected a plan, an evaluation or what `planner search --json` printed; {e} is missing or wrong"
        ) from e


def _found_with(path: Path, point: Point, label: str | None) -> Iterator[Point]:
    """What the search of a plan found beside it, where its record lies there."""
    from planner.planning import read_plan

    record = record_beside(path, read_plan(path))
    at = f"{point.step_time_s:.9g}", point.peak_memory_bytes
    for p in () if record is None else record.points:
        if (f"{p.step_time_s:.9g}", p.peak_memory_bytes) != at:
            yield replace(
                point,
                series=label or ("front of the search" if p.kind == "front" else "also found"),
                name=p.parallelism,
                step_time_s=p.step_time_s,
                peak_memory_bytes=p.peak_memory_bytes,
                samples_per_s=None,
                tokens_per_s=None,
                mfu=None,
                causes={},
                front=p.kind == "front",
            )


def _text(value: object) -> str | None:
    """What a document says, where it says it."""
    return value if isinstance(value, str) else None


def _causes(d: Mapping[str, Any]) -> dict[str, int]:
    """Of an evaluation its parts by the clock; of an answer those of its plan, which lies where the answer says."""
    from planner.report.causes import of_clock, picoseconds

    if "plan" in d:
        return dict(_of_plan(Path(d["plan"]), None).causes)
    parts = d.get("step_parts_s") or d["breakdown_s"]
    return of_clock(parts, picoseconds(float(d["step_time_s"])))


def _of_plan(path: Path, label: str | None) -> Point:
    from planner.planning import read_plan
    from planner.report.causes import step_causes
    from planner.report.diff.batch import samples
    from planner.report.plots import Point
    from planner.requests.headline import words

    plan = read_plan(path)
    model = path.parent / MODEL_FILE
    rates = rates_beside(plan, model)
    return Point(
        label or "searched",
        label or words(plan).removesuffix(" (--details)"),
        plan.devices,
        samples(plan),
        plan.cost.step_time_s,
        plan.cost.peak_memory_bytes,
        samples_per_s=rates.get("samples_per_s"),
        tokens_per_s=rates.get("tokens_per_s"),
        mfu=rates.get("mfu"),
        causes=step_causes(plan, clock_of_plan(plan, model)),
        model=plan.model.name,
        mode=plan.schedule.mode,
        hardware=plan.cluster.hardware,
    )
