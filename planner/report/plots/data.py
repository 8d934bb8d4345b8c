"""What figures show, as plain values: the very figures of plans and of what commands print."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, get_args

from planner.errors import InputError
from planner.planning.document import PlanDocument
from planner.report.causes import CAUSE_NAMES, PICOSECOND, comparable
from planner.report.figures import figures, part_of_move
from planner.report.timeline import pipeline_run

__all__ = ["KINDS", "SCHEMA", "Kind", "Point", "breakdown", "pareto", "scaling", "timeline"]

SCHEMA: Final = "planner.plot/1"
Kind = Literal["scaling", "pareto", "breakdown", "timeline"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_PHASES: Final = {"F": "forward", "B": "backward", "W": "weight gradients"}


@dataclass(frozen=True, slots=True)
class Point:
    """A plan or a configuration: `series`: what it belongs to in a figure; `causes`: picoseconds of its step by cause,
    of a plan; `front`: whether it is one of a front of time and memory, of which there is no plan; `model` (its name),
    `mode` and `hardware`: None where they are not known."""

    series: str
    name: str
    devices: int
    batch: int | None
    step_time_s: float
    peak_memory_bytes: int
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    causes: Mapping[str, int] = field(default_factory=dict)
    front: bool = False
    model: str | None = None
    mode: str | None = None
    hardware: str | None = None


def scaling(points: Sequence[Point]) -> dict[str, Any]:
    """Series over numbers of devices, and the ideal: as many times faster as there are more devices than in the first
    series' smallest point.  InputError where batches, models or modes are not the same, so that steps are not the same
    work, or a series is of several kinds of hardware."""
    _several(points, "scaling")
    _same_work(points, "scaling")
    series: dict[str, list[Point]] = {}
    for p in points:
        series.setdefault(p.series, []).append(p)
    ordered = {name: sorted(found, key=lambda p: p.devices) for name, found in series.items()}
    for name, found in ordered.items():
        machines = {p.hardware for p in found} - {None}
        advice = "give those of each kind a name (LABEL=PLAN)"
        _one("scaling", machines, "kind of hardware", advice, f" in series {name!r}")
        counts = [p.devices for p in found]
        if len(set(counts)) < len(counts):
            raise InputError(
                f"plot scaling: series {name!r} has two plans of as many devices; give them names (LABEL=PLAN)"
            )
    first = next(iter(ordered.values()))[0]
    counts = sorted({p.devices for p in points})
    return {
        "schema": SCHEMA,
        "kind": "scaling",
        "batch": first.batch,
        "series": [{"name": n, "points": [_said(p) for p in found]} for n, found in ordered.items()],
        "ideal": [{"devices": n, "step_time_s": first.step_time_s * first.devices / n} for n in counts],
    }


def pareto(points: Sequence[Point]) -> dict[str, Any]:
    """Step time and memory of all, and which of them no other one of as many devices beats in both.  InputError where
    batches, models or modes are not the same, so that steps are not the same work."""
    _several(points, "pareto")
    _same_work(points, "pareto")

    def beaten(p: Point) -> bool:
        return any(
            q.devices == p.devices
            and q.step_time_s <= p.step_time_s
            and q.peak_memory_bytes <= p.peak_memory_bytes
            and (q.step_time_s, q.peak_memory_bytes) != (p.step_time_s, p.peak_memory_bytes)
            for q in points
        )

    rows = sorted(points, key=lambda p: (p.devices, p.peak_memory_bytes, p.step_time_s))
    several = len({p.devices for p in points}) > 1
    return {
        "schema": SCHEMA,
        "kind": "pareto",
        "points": [
            {
                **_said(p),
                "series": f"{p.series}, {p.devices:,} devices" if several else p.series,
                "best": not beaten(p),
            }
            for p in rows
        ],
    }


def breakdown(points: Sequence[Point]) -> dict[str, Any]:
    """The step by cause; the seconds of a plan add up to its step.  Plans of several models are named with them."""
    _several(points, "breakdown", least=1)
    several = len({p.model for p in points} - {None}) > 1
    listed = comparable(p.causes for p in points)
    return {
        "schema": SCHEMA,
        "kind": "breakdown",
        "causes": {c: CAUSE_NAMES[c] for c in (listed[0] if listed else {})},
        "plans": [
            {
                **_said(p),
                "name": f"{p.model}: {p.name}" if several and p.model else p.name,
                "causes_s": {c: n * PICOSECOND for c, n in parts.items()},
            }
            for p, parts in zip(points, listed, strict=True)
        ],
    }


def timeline(plan: PlanDocument) -> dict[str, Any]:
    """Rows of bars in seconds from the begin of the step: passes of micro-batches by stage; of a plan without
    micro-batches the streams of one device.  InputError where the plan does not say when anything runs."""
    run = pipeline_run(plan)
    rows = _streams(plan) if run is None else _stages(plan, run.passes)
    if not any(r["bars"] for r in rows):
        raise InputError(f"plan of {plan.model.name}: it does not say when its operators run; search again")
    return {
        "schema": SCHEMA,
        "kind": "timeline",
        "model": plan.model.name,
        "step_time_s": plan.cost.step_time_s,
        "micro_batches": plan.schedule.micro_batches,
        "shown": plan.schedule.micro_batches if run is None else run.micro_batches,
        "rows": rows,
    }


def _stages(plan: PlanDocument, passes: Iterable[tuple[int, str, int, float, float, int]]) -> list[dict[str, Any]]:
    bars: list[list[dict[str, Any]]] = [[] for _ in plan.stages]
    end = 0.0
    for stage, kind, number, begin, until, chunk in passes:
        if until > begin:
            bars[stage].append(
                {"phase": _PHASES[kind], "micro_batch": number, "chunk": chunk, "begin_s": begin, "end_s": until}
            )
            end = max(end, until)
    for k, s in enumerate(plan.stages):
        if s.once_s:
            bars[k].append({"phase": "once a step", "begin_s": end, "end_s": end + s.once_s})
    return [{"name": f"stage {k}", "bars": found} for k, found in enumerate(bars)]


def _streams(plan: PlanDocument) -> list[dict[str, Any]]:
    """What follows without a gap in one phase is one bar."""
    costs = figures(plan)
    found: dict[str, list[tuple[str, int, int]]] = {"computing": [], "activations": [], "parameters": []}
    for runs in costs.runs.values():
        found["computing"] += [(r.phase, r.begin, r.begin + r.units) for r in runs if r.units]
    for i, move in enumerate(plan.redistributions):
        if costs.moved[i] and costs.timed:
            stream = "parameters" if move.tensor in plan.parameters else "activations"
            phase = "backward" if part_of_move(plan, i).endswith("gradients") else "forward"
            found[stream].append((phase, costs.begins[i], costs.begins[i] + costs.moved[i]))
    return [{"name": name, "bars": _joined(events, costs.unit_s)} for name, events in found.items()]


def _joined(events: Iterable[tuple[str, int, int]], unit_s: float) -> list[dict[str, Any]]:
    bars: list[list[Any]] = []
    for phase, begin, end in sorted(events, key=lambda e: e[1:]):
        if bars and bars[-1][0] == phase and begin <= bars[-1][2]:
            bars[-1][2] = max(bars[-1][2], end)
        else:
            bars.append([phase, begin, end])
    return [{"phase": p, "begin_s": b * unit_s, "end_s": e * unit_s} for p, b, e in bars]


def _several(points: Sequence[Point], kind: str, least: int = 2) -> None:
    if len(points) < least:
        raise InputError(f"plot {kind}: expected at least {least} plans, found {len(points)}; name more of them")


def _same_work(points: Sequence[Point], kind: str) -> None:
    """InputError where a step of one plan does other work than that of another, as far as it is known."""
    _one(kind, {p.batch for p in points} - {None}, "batch", "leave those of other batches out")
    _one(kind, {p.model for p in points} - {None}, "model", "leave those of other models out")
    _one(kind, {p.mode for p in points} - {None}, "mode", "leave those of the other mode out")


def _one(kind: str, found: Collection[object], what: str, advice: str, where: str = "") -> None:
    if len(found) > 1:
        named = ", ".join(sorted(map(str, found)))
        raise InputError(f"plot {kind}: expected plans of one {what}{where}, found {named}; {advice}")


def _said(p: Point) -> dict[str, Any]:
    known = asdict(p)
    return {k: known[k] for k in known if k not in ("series", "causes", "front", "model", "mode", "hardware")}
