"""The simulated step as the JSON that chrome://tracing and Perfetto open.

Trace Event Format: complete events (`ph: X`) with `ts` and `dur` in microseconds, and metadata events (`ph: M`) that
name processes and threads.  Viewers count in nanoseconds, and Perfetto drops an event that ends after the next one of
its thread begins, so beginnings and ends are rounded, not durations; the exact time is in `args`.
"""

from __future__ import annotations

import math
from typing import Any

from planner.planning.document import PlanDocument
from planner.report.figures import figures, part_of_move
from planner.report.interleaved import interleaved
from planner.report.timeline import pipeline_run
from planner.report.words import move_text

__all__ = ["named", "timed_event", "trace_document"]

_STEP, _COPIES, _STAGE = 1, 2, 100  # process numbers: of one device's step, of copies that pass together, of stage 0
_PASSES = {"F": "forward", "B": "backward", "W": "weight gradients"}
_STREAMS = {"compute": 1, "activations": 2, "parameters": 3}


def trace_document(plan: PlanDocument) -> dict[str, Any]:
    """Every run of an operator, every redistribution and the optimizer on their streams; of a pipeline also every
    micro-batch on every stage.  Without events where the plan does not say when operators run."""
    costs = figures(plan)
    parts = plan.schedule.micro_batches
    one = "one micro-batch" if parts > 1 else "one step"
    events: list[dict[str, Any]] = []
    if costs.timed:
        events += [named("process_name", _STEP, 0, f"{one} on one of {plan.mesh.devices} devices")]
        events += [named("thread_name", _STEP, number, name) for name, number in _STREAMS.items()]
        events += _step(plan)
    events += _together(plan, costs.unit_s)
    run = pipeline_run(plan)
    if run is not None:
        end = max(p[4] for p in run.passes)
        for k, stage in enumerate(plan.stages):
            events.append(named("process_name", _STAGE + k, 0, f"stage {k}"))
            events.append(named("thread_name", _STAGE + k, 1, "micro-batches"))
            if stage.once_s:
                events.append(timed_event("once a step", "optimizer", _STAGE + k, 1, end, end + stage.once_s))
        for k, kind, part, begin, until, chunk in run.passes:
            name = _PASSES[kind]
            about = {"micro_batch": part} if plan.schedule.chunks == 1 else {"micro_batch": part, "chunk": chunk}
            if until > begin:  # none goes backward in inference
                events.append(timed_event(f"{name} {part}", name, _STAGE + k, 1, begin, until, **about))
    return {
        "displayTimeUnit": "ns",
        "otherData": {
            "model": plan.model.name,
            "mesh": str(plan.mesh),
            "hardware": plan.cluster.hardware,
            "step_time_s": plan.cost.step_time_s,
            "objective_s": plan.cost.objective_s,
        },
        "traceEvents": events,
    }


def _together(plan: PlanDocument, unit_s: float) -> list[dict[str, Any]]:
    """Micro-batches that pass together, a thread for each stream of each."""
    drawn = interleaved(plan)
    if not drawn:
        return []
    threads = sorted({(e.copy, e.stream) for e in drawn}, key=lambda t: (t[1] != "compute", t[0]))
    number = {thread: n for n, thread in enumerate(threads, 1)}
    count = plan.schedule.copies
    events = [named("process_name", _COPIES, 0, f"{count} micro-batches that pass together")]
    events += [named("thread_name", _COPIES, n, f"{stream} of copy {copy}") for (copy, stream), n in number.items()]
    for e in drawn:
        begin, end = e.begin * unit_s, (e.begin + e.units) * unit_s
        events.append(timed_event(e.name, e.phase, _COPIES, number[e.copy, e.stream], begin, end, copy=e.copy))
    return events


def _step(plan: PlanDocument) -> list[dict[str, Any]]:
    events = []
    costs = figures(plan)
    unit, last = costs.unit_s, 0
    for name, runs in costs.runs.items():
        o = plan.operators[name]
        for r in runs:
            last = max(last, r.begin + r.units)
            if r.units:
                events.append(
                    timed_event(
                        o.type,
                        r.phase,
                        _STEP,
                        _STREAMS["compute"],
                        r.begin * unit,
                        (r.begin + r.units) * unit,
                        operator=name,
                        module=o.module,
                        strategy=o.strategy,
                        seconds=r.units * unit,
                        inside_s=r.inside * unit,
                    )
                )
    for i, move in enumerate(plan.redistributions):
        last = max(last, costs.begins[i] + costs.moved[i])
        if costs.moved[i]:
            stream = "parameters" if move.tensor in plan.parameters else "activations"
            events.append(
                timed_event(
                    move_text(move),
                    part_of_move(plan, i),
                    _STEP,
                    _STREAMS[stream],
                    costs.begins[i] * unit,
                    (costs.begins[i] + costs.moved[i]) * unit,
                    seconds=costs.moved[i] * unit,
                    tensor=move.tensor,
                    direction=move.direction,
                    source=str(move.source.layout()),
                    target=str(move.target.layout()),
                    bytes=sum(s.bytes for s in move.steps),
                )
            )
    update = sum(costs.optimizer.values())
    outside = round(plan.cost.step_parts_s.get("outside", 0.0) / unit)
    if plan.cost.step_parts_s:
        last = round(plan.cost.step_time_s / unit) - update - outside
    if outside:
        begin, end = ((last + update + passed) * unit for passed in (0, outside))
        events.append(timed_event("outside the model", "outside", _STEP, _STREAMS["compute"], begin, end))
    if update:
        events.append(
            timed_event(
                "optimizer",
                "optimizer",
                _STEP,
                _STREAMS["compute"],
                last * unit,
                (last + update) * unit,
                seconds=update * unit,
                parameters=len(plan.parameters),
            )
        )
    return events


def timed_event(
    name: str, kind: str, process: int, thread: int, begin_s: float, end_s: float, **args: Any
) -> dict[str, Any]:
    """Something on a thread of a process, in seconds since the step began."""
    begin, end = round(begin_s * 1e9), round(end_s * 1e9)
    return {
        "name": name,
        "cat": kind,
        "ph": "X",
        "ts": _microseconds(begin),
        "dur": _microseconds(end - begin),
        "pid": process,
        "tid": thread,
        "args": args,
    }


def _microseconds(nanoseconds: int) -> float:
    """Such that a thousand times it is the number whether a reader rounds or cuts off."""
    found = nanoseconds / 1000
    return found if int(found * 1000) == nanoseconds else math.nextafter(found, math.inf)


def named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    """The `process_name` or `thread_name`."""
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
