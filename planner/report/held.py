"""What a device holds over a step, as far as a plan says: by cause where the batch is in one piece, else by stage.

A plan has what is held at the fullest moment.  What is there throughout (weights, gradients, the optimizer's state,
inputs) is the plan's; activations rise as operators run forward and fall as they run backward, each by its share of the
bytes of all results that wait, which add up to what the plan says of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from planner.clock.memory import STATE_BYTES
from planner.errors import UsageError
from planner.planning.document import LayoutDocument, ParameterDocument, PlanDocument
from planner.planning.schemes import parse_strategy
from planner.report.figures import Figures
from planner.report.timeline import PipelinePasses

__all__ = ["held_by_stage", "held_of_parameters", "held_over_time", "local_elements", "trains"]

_POINTS = 1500  # of the curve, at most
_WHOLE = {"int64": 8, "uint64": 8, "int32": 4, "uint32": 4, "int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1}


def local_elements(plan: PlanDocument, shape: list[int], layout: LayoutDocument) -> float:
    """Elements of a tensor that one device holds."""
    return prod(shape) / plan.mesh.size([a for axes in layout.dims for a in axes])


def held_over_time(plan: PlanDocument, costs: Figures) -> dict[str, Any] | None:
    """`points`: [seconds since the step's begin, bytes of activations], ascending.  None where the plan does not say
    what its memory consists of, or nothing waits for a backward pass."""
    kinds = plan.cost.memory_bytes
    waiting = kinds.get("activations", 0)
    if not kinds or not waiting or not costs.timed or plan.schedule.mode != "training":
        return None
    weights = _waiting(plan, costs)
    whole = sum(w for _, _, w in weights)
    if not whole:
        return None
    changes: list[tuple[int, float]] = []
    for begin, end, weight in weights:
        changes += [(begin, waiting * weight / whole), (end, -waiting * weight / whole)]
    level, points = 0.0, [[0, 0]]
    for at, change in sorted(changes):
        level += change
        if at == points[-1][0]:
            points[-1][1] = round(level)
        else:
            points.append([at, max(0, round(level))])
    top = max(range(len(points)), key=lambda k: points[k][1])
    points[top][1] = waiting
    every = -(-len(points) // _POINTS)
    kept = [p for k, p in enumerate(points) if k % every == 0 or k == top or k == len(points) - 1]
    return {
        "throughout": {k: v for k, v in kinds.items() if k not in ("activations", "transient")},
        "transient": kinds.get("transient", 0),
        "points": [[at * costs.unit_s, size] for at, size in kept],
    }


def _waiting(plan: PlanDocument, costs: Figures) -> list[tuple[int, int, float]]:
    """Operators whose results wait: from the end of their forward run to that of their backward run, with their bytes.
    Of those that run again, only what others read waits from the first run on; the rest is there from the second."""
    wide = 4 if plan.schedule.precision == "fp32" else 2
    again = {n for block in plan.schedule.recompute for n in block}
    readers: dict[str, set[str]] = {}
    for name, o in plan.operators.items():
        for t in o.inputs:
            readers.setdefault(t, set()).add(name)
    out = []
    for name, o in plan.operators.items():
        runs = {e.phase: e for e in costs.runs.get(name, ())}
        if "forward" not in runs or "backward" not in runs:
            continue
        first, last = runs["forward"], runs["backward"]
        inner = name in again and all(readers.get(t, set()) <= again for t in o.outputs if t)
        begin = runs["recompute"] if inner and "recompute" in runs else first
        size = sum(
            local_elements(plan, known.shape, layout) * _WHOLE.get(known.dtype, wide)
            for t, layout in zip(o.outputs, o.results, strict=False)
            if layout is not None and (known := plan.tensors.get(t)) is not None and known.shape is not None
        )
        if size:
            out.append((begin.begin + begin.units, last.begin + last.units, size))
    return out


def held_by_stage(plan: PlanDocument, run: PipelinePasses | None) -> list[dict[str, Any]]:
    """Of every stage of a pipeline: the `peak` that the plan has, what parameters and their state take of it
    (`parameters`, by their layouts), and how many micro-batches are in flight (`points`: [seconds, number])."""
    if run is None or len(plan.stages) < 2:
        return []
    changes: list[list[tuple[float, int]]] = [[] for _ in plan.stages]
    freed = "W" if any(p[1] == "W" for p in run.passes) else "B"
    for stage, kind, _, begin, end, _ in run.passes:
        if kind == "F":
            changes[stage].append((begin, run.copies))
        elif kind == freed:
            changes[stage].append((end, -run.copies))
    state = _state(plan)
    out = []
    for k, part in enumerate(plan.stages):
        level, points = 0, [[0.0, 0]]
        for at, change in sorted(changes[k]):
            level += change
            points.append([at, level])
        out.append(
            {"peak": part.peak_memory_bytes, "parameters": min(state[k], part.peak_memory_bytes), "points": points}
        )
    return out


def _state(plan: PlanDocument) -> list[int]:
    """Bytes of weights, their gradients and the optimizer's state on a device of each stage, by their layouts."""
    owners = _stages_of_parameters(plan)
    out = [0.0] * len(plan.stages)
    for name, size in held_of_parameters(plan).items():
        for stage in plan.parameters[name].stages or owners.get(name, []):
            out[stage] += size
    return [round(x) for x in out]


def held_of_parameters(plan: PlanDocument) -> dict[str, float]:
    """Bytes of every parameter, its gradient and the optimizer's state on a device that has it, by their layouts."""
    run = plan.schedule.run
    fp32 = plan.schedule.precision == "fp32"
    wide = int(run.get("parameter_bytes", 4 if fp32 else 2))
    summed = int(run.get("gradient_bytes", 4 if fp32 else 2))
    zero = _zero(plan)
    trained = trains(plan)
    out = {}
    for name, p in plan.parameters.items():
        read = max((local_elements(plan, p.shape, x) for x in p.compute), default=_of(plan, p, p.stored))
        weights = read if zero != 3 else _of(plan, p, p.stored)
        known = plan.tensors.get(name)
        out[name] = weights * (wide if known is None else _WHOLE.get(known.dtype, wide))
        if trained and p.gradient is not None:
            kept = _of(plan, p, p.optimizer or p.stored)
            apart = wide != 4 or (zero in (1, 2) and kept < read)  # the weights that are updated are others
            out[name] += (_of(plan, p, p.gradient) if zero in (2, 3) else read) * summed
            out[name] += kept * (STATE_BYTES[plan.schedule.optimizer] + 4 * apart)
    return out


def trains(plan: PlanDocument) -> bool:
    """Whether there are gradients of weights, and the optimizer's state."""
    return plan.schedule.mode == "training" and not plan.schedule.run.get("frozen")


def _zero(plan: PlanDocument) -> int | None:
    """What of weights and their state ranks divide; None where that is in the layouts alone."""
    requested = plan.search.request
    if requested is None or requested.strategy is None:
        return None if (found := plan.schedule.run.get("zero")) is None else int(found)
    samples = next((i.shape[0] for i in plan.inputs.values() if i.shape), 1) * plan.schedule.micro_batches
    kind = {"precision": plan.schedule.precision, "optimizer": plan.schedule.optimizer}
    try:
        return parse_strategy(requested.strategy, devices=plan.devices, batch=samples, **kind).zero
    except UsageError:  # its batch was another when it was requested
        return int(plan.schedule.run.get("zero", 0))


def _of(plan: PlanDocument, p: ParameterDocument, layout: LayoutDocument) -> float:
    return local_elements(plan, p.shape, layout)


def _stages_of_parameters(plan: PlanDocument) -> Mapping[str, list[int]]:
    found: dict[str, set[int]] = {}
    for o in plan.operators.values():
        for t in o.inputs:
            if t in plan.parameters:
                found.setdefault(t, set()).add(o.stage)
    return {t: sorted(stages) for t, stages in found.items()}
