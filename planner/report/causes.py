"""The step of a plan by cause, in whole picoseconds that add up to it exactly.

A plan of one stage and one micro-batch says them itself (`cost.step_parts_s`).  Of others the stages' own figures tell
what computes, what waits for other stages and what happens once a step; what a stage spends beyond its operators'
computing stands together as `unhidden`, unless the clock's own parts are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from planner.errors import InputError
from planner.planning.document import PlanDocument
from planner.report.timeline import pipeline_run

__all__ = ["CAUSES", "CAUSE_NAMES", "PICOSECOND", "comparable", "of_clock", "picoseconds", "step_causes"]

PICOSECOND: Final = 1e-12
CAUSE_NAMES: Final[Mapping[str, str]] = {
    "compute": "computing",
    "recompute": "recomputation",
    "collectives": "collectives not hidden",
    "host": "waiting for the host",
    "offload": "copies to the host not hidden",
    "unhidden": "collectives, host, recomputation",
    "together": "causes taken together",
    "bubble": "pipeline bubble",
    "optimizer": "optimizer",
    "outside": "outside the model",
}
CAUSES: Final = tuple(CAUSE_NAMES)
_TOGETHER: Final = ("recompute", "collectives", "host", "offload")  # what `unhidden` may hold
_OF_TIMELINE: Final = ("bubble", "outside")  # of a plan that says when its stages run
# Parts of the clock (`planner evaluate --json`) → causes.
_CLOCK: Final[Mapping[str, str]] = {
    "compute": "compute",
    "recompute": "recompute",
    "host": "host",
    "offload": "offload",
    "tensor_collectives": "collectives",
    "gathering": "collectives",
    "scattering": "collectives",
    "exchange": "collectives",
    "bubble": "bubble",
    "update": "optimizer",
    "overhead": "outside",
}


def picoseconds(seconds: float) -> int:
    """InputError where they are too many to count."""
    count = seconds / PICOSECOND
    if not math.isfinite(count):
        raise InputError(f"plan: {seconds} s cannot be counted in {PICOSECOND} s; search again")
    return round(count)


def step_causes(plan: PlanDocument, clock: Mapping[str, float] | None = None) -> dict[str, int]:
    """Cause → picoseconds; they add up to the plan's step.  `clock`: the parts of its step that the clock gives, of a
    plan that does not say them."""
    cost = plan.cost
    if cost.step_parts_s:
        return _closed(_of_file(plan), picoseconds(cost.step_time_s))
    if clock:
        return of_clock(clock, picoseconds(cost.step_time_s))
    return _of_stages(plan)


def of_clock(parts: Mapping[str, float], step: int) -> dict[str, int]:
    """Parts of a step of so many picoseconds by the clock, or as a plan says them, by cause."""
    found: dict[str, int] = {}
    for part, seconds in parts.items():
        cause = _CLOCK.get(part, part if part in CAUSES else "collectives")
        found[cause] = found.get(cause, 0) + picoseconds(seconds)
    return _closed(found, step)


def comparable(plans: Iterable[Mapping[str, int]]) -> list[dict[str, int]]:
    """The same causes for all: where one does not tell some of them apart, none does.  What one has no figure of, as a
    plan of an older version, is part of what is left of its step, and of that of all others."""
    listed = [dict(p) for p in plans]
    vague = [p for p in listed if "unhidden" in p]
    if not all(p.get("compute") for p in vague):
        return [{"together": sum(p.values())} for p in listed]
    missing = [c for c in _OF_TIMELINE if any(c not in p for p in vague)]
    if vague:
        left, parts = ("together", [*_TOGETHER, "unhidden", *missing]) if missing else ("unhidden", [*_TOGETHER])
        for p in listed:
            p[left] = p.pop(left, 0) + sum(p.pop(c, 0) for c in parts)
    return [{c: p.get(c, 0) for c in CAUSES if any(q.get(c) for q in listed)} for p in listed]


def _of_file(plan: PlanDocument) -> dict[str, int]:
    """Computing that runs a second time is told apart where the plan says so."""
    found = {c: picoseconds(s) for c, s in plan.cost.step_parts_s.items() if c in CAUSES}
    again = picoseconds(sum(_runs(plan, stage=0, again=True)))
    run = plan.schedule.run
    if not again and run.get("recompute", "none") != "none":
        # The operators' runs are those of the program; what the configuration runs again is beyond them.
        again = max(0, found.get("compute", 0) - picoseconds(sum(_runs(plan, stage=0, again=False))))
    again = min(again, found.get("compute", 0))
    return {**found, "compute": found.get("compute", 0) - again, "recompute": again}


def _of_stages(plan: PlanDocument) -> dict[str, int]:
    passes = plan.schedule.passes
    spent = [passes * (s.forward_s + s.backward_s) for s in plan.stages]
    busiest = spent.index(max(spent))
    micro = plan.schedule.micro_batches
    compute = picoseconds(micro * sum(_runs(plan, busiest, again=False)))
    again = picoseconds(micro * sum(_runs(plan, busiest, again=True)))
    once = max(range(len(plan.stages)), key=lambda k: plan.stages[k].once_s)
    update = sum(p.optimizer_s for p in plan.parameters.values() if once in (p.stages or [0]))
    found = {"compute": compute, "optimizer": picoseconds(min(update, plan.stages[once].once_s)), "recompute": again}
    run = pipeline_run(plan)
    if run is not None and run.micro_batches == micro:
        end = max(p[4] for p in run.passes)
        found["bubble"] = max(0, picoseconds(end - spent[busiest])) if len(plan.stages) > 1 else 0
        found["outside"] = max(0, picoseconds(plan.cost.step_time_s - end - plan.stages[once].once_s))
    rest = picoseconds(plan.cost.step_time_s) - sum(found.values())
    if rest < 0:  # stages of less than their operators: the file was edited, or is of another version
        return {"unhidden": picoseconds(plan.cost.step_time_s)}
    return {**found, "recompute": 0, "unhidden": rest + again}


def _runs(plan: PlanDocument, stage: int, *, again: bool) -> list[float]:
    return [
        r.seconds - r.inside_s
        for o in plan.operators.values()
        if o.stage == stage
        for r in o.runs
        if (r.phase == "recompute") == again
    ]


def _closed(found: dict[str, int], step: int) -> dict[str, int]:
    """What rounding to picoseconds leaves stands with the largest cause."""
    left = step - sum(found.values())
    if left and found:
        largest = max(found, key=lambda c: found[c])
        found[largest] += left
    elif left:
        found["unhidden"] = left
    return found
