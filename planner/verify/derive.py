"""A plan document derived again, and compared with the file field by field.

The choice is taken from the file: the mesh, the role of every axis in every operator, the layouts in which parameters
are stored, how tensors move, the stage of every operator.  From these, the graph and the machine everything else
follows, by the code that writes plans (`planner.planning`), so that it is equal to the last digit.  What only the
search knows is held against what is known of it (`claims`).
"""

from __future__ import annotations

from typing import Final

from planner.cost_models import HardwareProfile
from planner.errors import InputError, PlannerError
from planner.ir import DeviceMesh, Graph
from planner.planning import PlanDocument, Planned, describe, plan_text
from planner.planning.consistency import contradiction
from planner.planning.constraints import Constraints
from planner.planning.rebuild import pipeline_of_plan, planned_of_plan, profile_of_plan
from planner.planning.restore import restore_part
from planner.pricing import PriceTables
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
    planned = planned_of_plan(plan, restored, machine, pins_of(constraints, restored.priced))
    pipeline = pipeline_of_plan(plan, planned)
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
