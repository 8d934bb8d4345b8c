"""A plan.json priced as it stands, on the hardware it was made for or on any other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from cost_models import HardwareProfile, usable_memory_bytes
from planner.clock import play
from planner.errors import UsageError
from planner.ir import Graph
from planner.lowering import liveness
from planner.planning.breakdown import breakdown
from planner.planning.document import PlanDocument
from planner.planning.execution import execution_of
from planner.planning.plan_file import read_plan
from planner.planning.restore import Restored, restore

__all__ = ["evaluate_plan"]

Load = Callable[[int | None, Mapping[str, int]], Graph]


def evaluate_plan(
    path: str | os.PathLike[str],
    load: Load,
    profile: HardwareProfile,
    devices: int | None = None,
    memory_limit: int | None = None,
) -> dict[str, Any]:
    """What the plan costs on `profile`: seconds, bytes per device, collectives.  Nothing is searched.

    `load(batch, bind)` reads the model with these sizes, which are the plan's own (batch None: as the file has it).
    On the hardware that the plan was made for the figures are those of its `cost`, to the last digit; servers are then
    as full as planned and the limit is the planned one.  Elsewhere the profile says both.  `memory_limit` in bytes
    overrides.

    UsageError where `devices` are not the plan's; InputError where the file is no plan of the model or the profile
    cannot price its mesh.
    """
    plan = read_plan(path)
    source = f"plan {os.fspath(path)}"
    if devices is not None and devices != plan.cluster.devices:
        raise UsageError(
            f"{source}: at cluster.devices: expected {devices} as of --devices, found {plan.cluster.devices}; "
            f"leave --devices out, or search for {devices}"
        )
    at_home = plan.cluster.profile_digest == profile.digest
    if memory_limit is None:
        memory_limit = plan.cluster.memory_limit_bytes if at_home else usable_memory_bytes(profile)
    machine = _servers_as_planned(profile, plan) if at_home else profile
    found = restore(plan, load(plan.model.batch, plan.model.bind), machine, source)
    return _document(plan, found, memory_limit)


def _servers_as_planned(profile: HardwareProfile, plan: PlanDocument) -> HardwareProfile:
    """The profile with as many devices on each server as the search was told (`--nodes`)."""
    each = plan.cluster.devices_per_server
    if profile.server is None or each is None or each == profile.server.devices:
        return profile
    return replace(profile, server=replace(profile.server, devices=each))


def _document(plan: PlanDocument, found: Restored, limit: int | None) -> dict[str, Any]:
    priced, program = found.priced, found.program
    graph, settings, unit_s = priced.graph, priced.machine.settings, priced.machine.unit_s
    parts = breakdown(priced, found.choice, program)
    step = play(priced, found.choice, program, execution_of(plan, graph)).end * unit_s
    memory = liveness(program, settings).parts
    peak = sum(memory.values())
    batch = next((s[0] for t in graph.inputs if (s := graph.tensors[t].shape)), None)
    traffic = program.traffic(settings)
    return {
        "hardware": priced.machine.profile.name,
        "devices": priced.machine.mesh.devices,
        "batch": batch,
        "configuration": _configuration(plan, found),
        "step_time_s": step,
        "samples_per_s": batch / step if batch and step else None,
        "objective_s": parts.total * unit_s,
        "breakdown_s": parts.seconds(unit_s),
        "peak_memory_bytes": peak,
        "memory_bytes": memory,
        "memory_limit_bytes": limit,
        "fits": limit is None or peak <= limit,
        "collectives": {kind: asdict(t) for kind, t in traffic.items()},
        "planned": {
            "hardware": plan.cluster.hardware,
            "objective_s": plan.cost.objective_s,
            "step_time_s": plan.cost.step_time_s,
            "peak_memory_bytes": plan.cost.peak_memory_bytes,
        },
    }


def _configuration(plan: PlanDocument, found: Restored) -> str:
    """The mesh and how much of the model is split over it, in one line."""
    program, settings = found.program, found.priced.machine.settings
    ops = [op for op in program.graph.ops if op.name in found.priced.op_nodes]
    split = sum(any(r.kind == "split" for r in program.strategies[op.name].roles) for op in ops)
    stored = [p.stored for p in plan.parameters.values()]
    cut = sum(any(layout.dims) for layout in stored)
    what = [settings.precision, *([f"training with {settings.optimizer}"] if settings.training else ["inference"])]
    again = f", {len(plan.schedule.recompute)} blocks recomputed" if plan.schedule.recompute else ""
    return (
        f"mesh {found.priced.machine.mesh}, {split} of {len(ops)} operators split, "
        f"{cut} of {len(stored)} parameters sharded{again}, {' '.join(what)}"
    )
