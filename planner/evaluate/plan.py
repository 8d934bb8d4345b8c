"""A plan.json priced as it stands, on the hardware it was made for or on any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from planner.cost_models import HardwareProfile, usable_memory_bytes
from planner.errors import UsageError
from planner.ir import Graph
from planner.planning import Planned
from planner.planning.document import PlanDocument
from planner.planning.pipeline import Pipelined
from planner.planning.plan_file import read_plan
from planner.planning.rebuild import pipeline_of_plan, planned_of_plan, profile_of_plan
from planner.planning.restore import restore_part

__all__ = ["evaluate_plan", "price_plan"]

Load = Callable[[int | None, Mapping[str, int]], Graph]


def evaluate_plan(
    path: str | os.PathLike[str],
    load: Load,
    profile: HardwareProfile | None = None,
    devices: int | None = None,
    memory_limit: int | None = None,
) -> dict[str, Any]:
    """As `price_plan`, of a file.  InputError where it is no plan."""
    return price_plan(read_plan(path), load, profile, devices, memory_limit, name=f"plan {os.fspath(path)}")


def price_plan(
    plan: PlanDocument,
    load: Load,
    profile: HardwareProfile | None = None,
    devices: int | None = None,
    memory_limit: int | None = None,
    *,
    name: str = "plan",
) -> dict[str, Any]:
    """What the plan costs on `profile` (None: the machine it was made for): seconds, bytes per device, collectives.
    Nothing is searched.

    `load(batch, bind)` reads the model with these sizes, which are the plan's own (batch None: as the file has it).
    On the hardware that the plan was made for the figures are those of its `cost`, to the last digit; servers are then
    as full as planned and the limit is the planned one.  Elsewhere the profile says both.  `memory_limit` in bytes
    overrides.  `name`: what errors call the plan.

    UsageError where `devices` are not the plan's; InputError where it is no plan of the model or the profile cannot
    price its mesh.
    """
    if devices is not None and devices != plan.cluster.devices:
        raise UsageError(
            f"{name}: at cluster.devices: expected {devices} as of --devices, found {plan.cluster.devices}; "
            f"leave --devices out, or search for {devices}"
        )
    own = None if profile is not None else profile_of_plan(plan)
    machine = own or profile
    assert machine is not None
    at_home = plan.cluster.profile_digest == machine.digest
    if memory_limit is None:
        memory_limit = plan.cluster.memory_limit_bytes if at_home else usable_memory_bytes(machine)
    if at_home and own is None:
        machine = _servers_as_planned(machine, plan)
    restored = restore_part(plan, load(plan.model.batch, plan.model.bind), machine, name)
    planned = planned_of_plan(plan, restored, machine, as_written=True)
    return _document(plan, planned, pipeline_of_plan(plan, planned), memory_limit)


def _servers_as_planned(profile: HardwareProfile, plan: PlanDocument) -> HardwareProfile:
    """The profile with as many devices on each server as the search was told (`--nodes`)."""
    each = plan.cluster.devices_per_server
    if profile.server is None or each is None or each == profile.server.devices:
        return profile
    return replace(profile, server=replace(profile.server, devices=each))


def _document(plan: PlanDocument, planned: Planned, pipeline: Pipelined | None, limit: int | None) -> dict[str, Any]:
    priced, program = planned.priced, planned.program
    graph, settings, unit_s = priced.graph, priced.machine.settings, priced.machine.unit_s
    samples = next((s[0] for t in graph.inputs if (s := graph.tensors[t].shape)), None)
    if pipeline is None:
        step, peak, memory = planned.step_time_s, planned.peak_memory_bytes, dict(planned.memory.parts)
        parts = {name: units * unit_s for name, units in planned.timeline.parts.items()}
        count, stages = 1, []
    else:
        step, peak, memory, count = pipeline.step_time_s, max(pipeline.memory), {}, pipeline.micro_batches
        parts = dict(pipeline.parts_s)
        stages = [
            {**asdict(cost), "peak_memory_bytes": held}
            for cost, held in zip(pipeline.costs, pipeline.memory, strict=True)
        ]
    batch = None if samples is None else samples * count
    return {
        "hardware": priced.machine.profile.name,
        "devices": plan.devices,
        "batch": batch,
        "configuration": _configuration(plan, planned),
        "step_time_s": step,
        "step_parts_s": parts,
        "samples_per_s": batch / step if batch and step else None,
        "micro_batches": count,
        "stages": stages,
        "objective_s": planned.objective_s,
        "breakdown_s": planned.parts.seconds(unit_s),
        "peak_memory_bytes": peak,
        "memory_bytes": memory,
        "memory_limit_bytes": limit,
        "fits": limit is None or peak <= limit,
        "collectives": {kind: asdict(t) for kind, t in program.traffic(settings).items()},
        "planned": {
            "hardware": plan.cluster.hardware,
            "objective_s": plan.cost.objective_s,
            "step_time_s": plan.cost.step_time_s,
            "peak_memory_bytes": plan.cost.peak_memory_bytes,
        },
    }


def _configuration(plan: PlanDocument, planned: Planned) -> str:
    """The mesh and how much of the model is split over it, in one line."""
    program, settings = planned.program, planned.priced.machine.settings
    ops = [op for op in program.graph.ops if op.name in planned.priced.op_nodes]
    split = sum(any(r.kind == "split" for r in program.strategies[op.name].roles) for op in ops)
    stored = [p.stored for p in plan.parameters.values()]
    cut = sum(any(layout.dims) for layout in stored)
    kind = [settings.precision, *([f"training with {settings.optimizer}"] if settings.training else ["inference"])]
    again = f", {len(plan.schedule.recompute)} blocks recomputed" if plan.schedule.recompute else ""
    cut_in = ""
    if len(plan.stages) > 1 or plan.schedule.micro_batches > 1:
        counts = {"stage": len(plan.stages), "micro-batch": plan.schedule.micro_batches}
        several = {"stage": "stages", "micro-batch": "micro-batches"}
        cut_in = ", ".join(f"{n} {what if n == 1 else several[what]}" for what, n in counts.items()) + ", each stage "
    return (
        f"{cut_in}mesh {planned.mesh}, {split} of {len(ops)} operators split, "
        f"{cut} of {len(stored)} parameters sharded{again}, {' '.join(kind)}"
    )
