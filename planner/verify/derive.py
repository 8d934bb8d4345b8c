"""A plan document derived again, and compared with the file field by field.

The choice is taken from the file: the mesh, the role of every axis in every operator, the layouts in which parameters
are stored, how tensors move, the stage of every operator.  From these, the graph and the machine everything else
follows, by the code that writes plans (`planner.planning`), so that it is equal to the last digit.  What only the
search knows is held against what is known of it (`claims`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from cost_models import HardwareProfile, ProfileError, load_profile
from cost_models.profile import parse_profile
from planner.clock import play
from planner.errors import InputError, PlannerError
from planner.ir import DeviceMesh, Graph
from planner.planning import PlanDocument, Planned, Request, describe, plan_text
from planner.planning.breakdown import breakdown
from planner.planning.consistency import contradiction
from planner.planning.constraints import Constraints, Pins
from planner.planning.execution import execution_of
from planner.planning.fit import program_of_choice
from planner.planning.pipeline import Pipelined, pipelined, stage_of_operators
from planner.planning.pipeline.cut import flowing
from planner.planning.planner import on_nodes
from planner.planning.restore import Restored, restore_part, settings_of
from planner.pricing import PriceTables
from planner.pricing.operators import bind_rules
from planner.search.problem import Solution
from planner.verify.claims import claims
from planner.verify.fields import Difference, compare
from planner.verify.pins import constraints_of_request, pins_of

__all__ = ["Difference", "derived", "differences", "profile_of_plan"]

_PLAN: Final = "plan"


def differences(
    plan: PlanDocument,
    graph: Graph,
    *,
    profile: HardwareProfile | None = None,
    tables: dict[DeviceMesh, PriceTables] | None = None,
) -> list[Difference]:
    """The fields of the plan that are not what follows from its choice, `graph` and the machine; empty where it is
    right.

    `profile`: the machine, where the plan does not say it.  `tables` keeps what was priced, for further plans of this
    graph, profile and settings.
    """
    wrong = contradiction(plan)
    if wrong is not None:
        return [Difference.of_message(wrong, _PLAN)]
    try:
        expected, planned, constraints = _derive(plan, graph, profile, tables)
        found: list[Difference] = []
        if plan_text(expected) != plan_text(plan):
            found += compare(expected.model_dump(by_alias=True), plan.model_dump(by_alias=True))
        return [*found, *claims(plan, planned, constraints)]
    except PlannerError as e:
        return [Difference.of_message(str(e).removeprefix(f"{_PLAN}: "), _PLAN)]
    except (AssertionError, ArithmeticError, LookupError, ValueError) as e:
        reason = f"one from which nothing can be derived ({type(e).__name__}: {e})"
        return [Difference(_PLAN, "a choice that the search could have made", reason)]


def derived(plan: PlanDocument, graph: Graph) -> PlanDocument:
    """The document as it follows from the plan's choice; what only the search knows is the plan's own.

    InputError where it holds no choice for this graph."""
    return _derive(plan, graph, None, None)[0]


def profile_of_plan(plan: PlanDocument) -> HardwareProfile:
    """The machine that the plan says it was made for, its servers as full as the plan says.

    InputError where it is not to be had, or is another one by now."""
    asked = plan.search.request
    name = plan.cluster.hardware
    try:
        if asked is not None and asked.profile is not None:
            profile = parse_profile(asked.profile.text, origin=asked.profile.name)
        else:
            profile = load_profile(name)
    except ProfileError as e:
        raise InputError(f"plan: at cluster.hardware: expected a machine that is known, found {name} ({e})") from e
    if asked is not None:
        return on_nodes(profile, plan.cluster.devices, asked.nodes)
    each = plan.cluster.devices_per_server
    if profile.server is None or each is None:
        return profile
    return replace(profile, server=replace(profile.server, devices=each))


def _derive(
    plan: PlanDocument,
    graph: Graph,
    profile: HardwareProfile | None,
    tables: dict[DeviceMesh, PriceTables] | None,
) -> tuple[PlanDocument, Planned, Constraints | None]:
    """The document, the plan as the search left it, and what was forced on it."""
    machine = profile or profile_of_plan(plan)
    if machine.digest != plan.cluster.profile_digest:
        raise InputError(
            f"plan: at cluster.profile_digest: expected {machine.digest} of {machine.name} as it is, found "
            f"{plan.cluster.profile_digest}; search again"
        )
    restored = restore_part(plan, graph, machine, _PLAN, tables)
    constraints = constraints_of_request(plan, restored.priced, restored.choice)
    planned = _planned(plan, restored, machine, pins_of(constraints, restored.priced))
    pipeline = _pipeline(plan, planned)
    document = describe(
        planned if pipeline is None else pipeline.planned,
        bind=plan.model.bind,
        batch=plan.model.batch,
        pipeline=pipeline,
        request=plan.search.request,
    )
    # What only the search knows, and the outcome of executing the plan.
    search = plan.search.model_copy(
        update={"operators_replicated_for_want_of_a_rule": document.search.operators_replicated_for_want_of_a_rule}
    )
    model = document.model.model_copy(update={"name": plan.model.name})
    pins = plan.pins if plan.search.request is None else document.pins  # the library was not asked in words
    own = {"model": model, "search": search, "pins": pins}
    own |= {"verification": plan.verification, "executed": plan.executed}
    return document.model_copy(update=own), planned, constraints


def _planned(plan: PlanDocument, restored: Restored, profile: HardwareProfile, pins: Pins) -> Planned:
    """The plan as the search left it before it was described."""
    priced, choice = restored.priced, restored.choice
    assignment = priced.decode(choice)
    program, memory = program_of_choice(priced, choice)
    parts = breakdown(priced, choice, program)
    execution = execution_of(plan, priced.graph)
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


def _pipeline(plan: PlanDocument, planned: Planned) -> Pipelined | None:
    """The stages and micro-batches, by the plan's own stage of each operator."""
    stages, micro_batches = len(plan.stages), plan.schedule.micro_batches
    if stages == 1 and micro_batches == 1:
        return None
    graph = planned.priced.graph
    moves = flowing(graph)
    points = []
    for stage in range(1, stages):
        first = (i for i, op in enumerate(graph.ops) if op.name in moves and plan.operators[op.name].stage >= stage)
        points.append(next(first, len(graph.ops)))
    if points[-1:] == [len(graph.ops)] or len(set(points)) < len(points):
        empty = next(s for s in range(1, stages) if points[s - 1] == (*points, len(graph.ops))[s])
        raise InputError(f"plan: at stages[{empty}]: expected operators that data flows through, found none")
    assert set(stage_of_operators(graph, points).values()) == set(range(stages))
    return pipelined(planned, stages, micro_batches, points=points)
