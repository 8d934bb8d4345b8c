"""A plan.json made again as the search left it: its choice priced, simulated, and cut into its stages."""

from __future__ import annotations

from dataclasses import replace

from planner.clock import Configuration, device_for, held_of_plan, play
from planner.cost_models import HardwareProfile, ProfileError, load_profile
from planner.cost_models.profile import parse_profile
from planner.errors import InputError, UsageError
from planner.planning.breakdown import breakdown
from planner.planning.constraints import Pins
from planner.planning.document import PlanDocument
from planner.planning.execution import execution_of
from planner.planning.fit import program_of_choice
from planner.planning.pipeline import Pipelined, pipelined, stage_of_operators
from planner.planning.pipeline.cut import flowing
from planner.planning.planner import Planned, on_nodes
from planner.planning.request import Request
from planner.planning.restore import Restored, settings_of
from planner.rules.bound import bind_rules
from planner.search.problem import Solution

__all__ = ["pipeline_of_plan", "planned_of_plan", "profile_of_plan"]


def profile_of_plan(plan: PlanDocument) -> HardwareProfile:
    """The machine that the plan says it was made for, its servers as full as the plan says.

    InputError where it is not to be had, or is another one by now."""
    requested = plan.search.request
    name = plan.cluster.hardware
    try:
        if requested is not None and requested.profile is not None:
            profile = parse_profile(requested.profile.text, origin=requested.profile.name)
        else:
            profile = load_profile(name)
    except ProfileError as e:
        raise InputError(f"plan: at cluster.hardware: expected a machine that is known, found {name} ({e})") from e
    if requested is not None:
        return on_nodes(profile, plan.cluster.devices, requested.nodes)
    each = plan.cluster.devices_per_server
    if profile.server is None or each is None:
        return profile
    return replace(profile, server=replace(profile.server, devices=each))


def planned_of_plan(
    plan: PlanDocument,
    restored: Restored,
    profile: HardwareProfile,
    pins: Pins | None = None,
    *,
    as_written: bool = False,
) -> Planned:
    """The plan of a micro-batch before it was described, on `profile`; what only the search knows is the plan's own.

    `as_written`: with the very redistributions of the file, where another profile would choose others."""
    priced, choice = restored.priced, restored.choice
    assignment = priced.decode(choice)
    execution = execution_of(plan, priced.graph)
    configured = execution if priced.machine.settings.training else None
    if execution is not None:
        _check_device(execution, profile)
    program = restored.program if as_written else program_of_choice(priced, choice)
    memory = held_of_plan(priced, program, configured)
    parts = breakdown(priced, choice, program)
    _, without_rule = bind_rules(priced.graph)
    return Planned(
        request=Request(priced.machine.mesh.devices, profile, settings_of(plan), execution=execution),
        priced=priced,
        solution=Solution("feasible", choice, parts.total, solver=plan.search.solver),
        assignment=assignment,
        program=program,
        parts=parts,
        bound_s=plan.cost.objective_lower_bound_s,
        step_bound_s=plan.cost.step_time_lower_bound_s,
        timeline=play(priced, choice, program, execution),
        memory=memory,
        memory_limit=plan.cluster.memory_limit_bytes,
        candidates=(),
        without_rule=tuple(without_rule),
        search_seconds=0.0,
        pins=pins,
    )


def _check_device(execution: Configuration, profile: HardwareProfile) -> None:
    try:
        device_for(execution, profile)
    except UsageError as e:
        raise InputError(
            f"plan: at search.request.strategy: expected one that {profile.name} can run, found {e}"
        ) from e


def pipeline_of_plan(plan: PlanDocument, planned: Planned) -> Pipelined | None:
    """The stages and micro-batches, by the plan's own stage of each operator; None where there is one of each.

    InputError where no data flows through a stage."""
    stages, micro_batches = len(plan.stages), plan.schedule.micro_batches
    if stages == 1 and micro_batches == 1:
        return None
    _check_order(plan, planned.request.execution)
    chunks = stages * plan.schedule.chunks
    chunk_of = {name: plan.chunk(name) for name in plan.operators}
    graph = planned.priced.graph
    moves = flowing(graph)
    points = []
    for chunk in range(1, chunks):
        first = (i for i, op in enumerate(graph.ops) if op.name in moves and chunk_of[op.name] >= chunk)
        points.append(next(first, len(graph.ops)))
    if points[-1:] == [len(graph.ops)] or len(set(points)) < len(points):
        empty = next(k for k in range(1, chunks) if points[k - 1] == (*points, len(graph.ops))[k])
        where = f"stages[{empty}]" if chunks == stages else f"schedule.chunks, in chunk {empty} of the model"
        raise InputError(f"plan: at {where}: expected operators that data flows through, found none")
    assert set(stage_of_operators(graph, points).values()) == set(range(chunks))
    return pipelined(planned, stages, micro_batches, points=points)


def _check_order(plan: PlanDocument, execution: Configuration | None) -> None:
    """InputError where passes run in another order than that of the plan's strategy; without one, 1F1B."""
    expected = ("1f1b", 1) if execution is None else (execution.order, execution.virtual_stages)
    found = plan.schedule.order, plan.schedule.chunks
    if found != expected:
        raise InputError(
            f"plan: at schedule.order: expected {expected[0]} with {expected[1]} chunk(s) of the model per stage, as "
            f"of search.request.strategy, found {found[0] or 'none'} with {found[1]}"
        )
